"""The client behind a proxy is the nearest that is not one of ours, whatever a client has written before it."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.config import load
from gateway.domain.access import OPEN
from gateway.domain.forwarding import UNKNOWN, ForwardingSettings
from gateway.domain.forwarding_settings import ForwardingConfig
from gateway.domain.principal import Principal
from gateway.port.adapter import Authenticate, Call, Challenge, Token
from gateway.runtime.requests import answer
from store.base.process_errors import ConfigError

PROXIES = ("10.0.0.0/8", "127.0.0.1", "2001:db8::/32")
X, FORWARDED = "x-forwarded-for", "forwarded"


def client(said, header=X, proxies=PROXIES):
    return ForwardingSettings(ForwardingConfig(proxies=proxies, header=header)).client(said)


def test_nobody_is_asked_where_no_proxy_is_named():
    assert ForwardingSettings.of(ForwardingConfig()) is None


@pytest.mark.parametrize(
    ("host", "trusted"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("127.0.0.1", True),
        ("127.0.0.2", False),
        ("2001:db8::9%eth0", True),
        ("2001:db9::9", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_proxies_are_known_by_their_networks(host, trusted):
    assert ForwardingSettings(ForwardingConfig(proxies=PROXIES)).trusts(host) is trusted


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (None, ""),
        ("", ""),
        (" , ", ""),
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.7:4711", "192.0.2.7"),
        ("[2001:db9::1]:80", "2001:db9::1"),
        ("2001:db9::1", "2001:db9::1"),
        ("127.0.0.1, 192.0.2.7", "192.0.2.7"),  # made up by the client
        ("192.0.2.7, 10.0.0.2,10.0.0.3", "192.0.2.7"),
        ("203.0.113.9, 192.0.2.7, 10.0.0.2", "192.0.2.7"),
        ("10.0.0.9, 10.0.0.2", "10.0.0.9"),  # one of ours has asked
        ("127.0.0.1, nonsense", UNKNOWN),
        ("192.0.2.7, unknown, 10.0.0.2", UNKNOWN),
        ("::ffff:192.0.2.7", "192.0.2.7"),
    ],
)
def test_the_nearest_that_is_not_ours(said, found):
    assert client(said) == found


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("for=192.0.2.7", "192.0.2.7"),
        ('For="[2001:db9::1]:4711";proto=https;by=10.0.0.1', "2001:db9::1"),
        ("proto=http;for=192.0.2.7 , for=10.0.0.2", "192.0.2.7"),
        ("for=unknown", UNKNOWN),
        ("for=_hidden, for=10.0.0.2", UNKNOWN),
        ("proto=https", UNKNOWN),
        ("192.0.2.7", UNKNOWN),
        ('for=127.0.0.1;x=", for="[2001:db9::1]"', "2001:db9::1"),  # a quote of the client's that reaches too far
        ('for="127.0.0.1, for=192.0.2.7', "192.0.2.7"),
    ],
)
def test_forwarded_says_the_same(said, found):
    assert client(said, FORWARDED) == found


@given(st.text(max_size=60), st.sampled_from([X, FORWARDED]))
def test_what_is_in_front_changes_nothing(made_up, header):
    own = "192.0.2.7" if header == X else 'for="192.0.2.7:80";proto=https'
    assert client(f"{made_up},{own}", header) == "192.0.2.7"


def test_a_long_header_is_read_in_no_time():
    assert client('"\\' * 30_000 + ",for=10.0.0.1" * 1_000, FORWARDED) == UNKNOWN


def test_what_is_no_network_is_said():
    with pytest.raises(ConfigError, match=r"forwarding\.proxies: .*10\.0\.0\.0/8"):
        load(environ={}, overrides={"forwarding": {"proxies": ["10.0.0.1/8"]}})


@pytest.mark.anyio
@pytest.mark.parametrize("gone", [False, True])
async def test_who_has_gone_before_anybody_asked_is_counted_nowhere(gone):
    class Authenticator:
        async def authenticate(self, _request, **said):
            return Challenge(data=said["address"].encode(), exchange=None)

    placed = []
    endpoint = SimpleNamespace(
        host="10.0.0.1", loopback=False, certificate=None, turned_away=None, gone=gone, comes_from=placed.append
    )
    endpoint.principal = Principal(name="", permissions=OPEN)
    request = Authenticate(mechanism="anonymous", address="203.0.113.7", sole=True)
    hub = SimpleNamespace(authenticator=Authenticator())
    challenge = await answer(hub, endpoint, Call(request=request, token=Token(1)))
    assert challenge.data == b"203.0.113.7"
    assert placed == ([] if gone else ["203.0.113.7"])
