"""Places of sinks: the public Internet, and what the configuration names."""

import asyncio

import pytest

from gateway.domain.errors import Refusal
from gateway.push.guard import SinkGuard, SinkRefused, connect_checked, resolve
from gateway.push.settings import SubscriptionsConfig, subscription_mistakes

HTTP = ("https", "http")
OPEN = SinkGuard(SubscriptionsConfig())
SOME = SinkGuard(SubscriptionsConfig(private_sinks=("10.1.0.0/16", "fd00::/8", "*.internal", "Box.lan")))

PRIVATE = [
    "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
    "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fd00::1",
    "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1", "64:ff9b::a00:1",
    "2001:db8::1", "::127.0.0.1", "fec0::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_no_private_address_is_connected_to(address: str) -> None:
    with pytest.raises(SinkRefused, match=r"sink\.example\.com is .* in a private network") as refused:
        OPEN.allowed("sink.example.com", [address])
    assert address not in str(refused.value), "where names of a private network lead is not told"


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822"])
def test_public_addresses_are(address: str) -> None:
    assert OPEN.allowed("sink.example.com", ["10.0.0.1", address]) == [address]


@pytest.mark.parametrize(
    ("host", "address", "allowed"),
    [
        ("sink.example.com", "10.1.2.3", True),
        ("sink.example.com", "10.2.2.3", False),
        ("sink.example.com", "fd00::5", True),
        ("sink.example.com", "::ffff:10.1.2.3", True),
        ("a.b.internal", "127.0.0.1", True),
        ("internal", "127.0.0.1", False),
        ("evilinternal", "127.0.0.1", False),
        ("BOX.LAN.", "192.168.0.9", True),
    ],
)
def test_the_configuration_allows_networks_and_names(host: str, address: str, allowed: bool) -> None:
    if allowed:
        assert SOME.allowed(host, [address]) == [address]
    else:
        with pytest.raises(SinkRefused):
            SOME.allowed(host, [address])


@pytest.mark.parametrize(
    "sink",
    ["", "example.com", "https://", "https:///x", "ftp://example.com", "https://exa mple.com", "https://e.com:99999",
     "https://e.com:0", "https://u@e.com", "https://e.com/#f", "https://[::1", "https://e.com/\n", "https://é.com",
     "https://e.com/" + "x" * 3_000],
)  # fmt: skip
def test_what_is_no_sink(sink: str) -> None:
    with pytest.raises(Refusal, match=r"^sink: "):
        OPEN.parse(sink, HTTP)


def test_http_is_for_private_sinks_or_where_it_is_allowed() -> None:
    with pytest.raises(SinkRefused, match="https"):
        OPEN.parse("http://example.com/", HTTP)
    assert SOME.parse("http://10.1.0.1:8080/x", HTTP).port == 8080
    assert SOME.parse("http://x.internal/", HTTP).hostname == "x.internal"
    assert SinkGuard(SubscriptionsConfig(plain_http=True)).parse("http://example.com/", HTTP).scheme == "http"


@pytest.mark.parametrize("scheme", ["mqtt", "amqp"])
def test_brokers_too_have_tls_unless_they_are_private(scheme: str) -> None:
    schemes = (f"{scheme}s", scheme)
    with pytest.raises(SinkRefused, match=f"{scheme}s"):
        OPEN.parse(f"{scheme}://example.com", schemes)
    assert OPEN.parse(f"{scheme}s://example.com", schemes).hostname == "example.com"
    assert SOME.parse(f"{scheme}://10.1.0.1", schemes).scheme == scheme
    with pytest.raises(SinkRefused, match="private"):
        OPEN.parse(f"{scheme}s://10.1.0.1", schemes)


class Lookups:
    """Finds these addresses, one list after the other."""

    def __init__(self, *found: list[str]) -> None:
        self._found = iter(found)

    async def addresses(self, _host: str) -> list[str]:
        return next(self._found)


def test_a_name_that_leads_elsewhere_the_next_time_is_checked_each_time() -> None:
    """DNS rebinding: the address that is connected to is one that was checked, and no name."""
    guard = SinkGuard(SubscriptionsConfig(), Lookups(["93.184.216.34"], ["127.0.0.1"]))

    async def both() -> None:
        assert await resolve(guard, "rebind.example.com") == ["93.184.216.34"]
        with pytest.raises(SinkRefused):
            await resolve(guard, "rebind.example.com")

    asyncio.run(both())


def test_an_address_is_no_name_to_look_up() -> None:
    guard = SinkGuard(SubscriptionsConfig(private_sinks=("::1",)), Lookups())
    assert asyncio.run(resolve(guard, "93.184.216.34")) == ["93.184.216.34"]
    assert asyncio.run(resolve(guard, "::1")) == ["::1"]
    with pytest.raises(SinkRefused):
        asyncio.run(resolve(guard, "127.0.0.1"))


ADDRESSES = ("93.184.216.34", "10.0.0.1", "93.184.216.35")


@pytest.mark.parametrize(
    ("failing", "tried"),
    [({}, "4"), ({"93.184.216.34": OSError}, "45"), (dict.fromkeys(ADDRESSES, OSError), "45 OSError"),
     ({"93.184.216.34": ZeroDivisionError}, "4 ZeroDivisionError")],
)  # fmt: skip
def test_the_first_checked_address_that_answers_is_connected_to(
    failing: dict[str, type[Exception]], tried: str
) -> None:
    seen = []
    guard = SinkGuard(SubscriptionsConfig(), Lookups(list(ADDRESSES)))

    async def connect(address: str) -> str:
        seen.append(address)
        if address in failing:
            raise failing[address]
        return address

    async def run() -> str:
        try:
            assert await connect_checked(guard, "sink.example.com", connect, failures=(OSError,)) == seen[-1]
        except (OSError, ZeroDivisionError) as error:
            return f" {type(error).__name__}"
        return ""

    ended = asyncio.run(run())
    assert "".join(address[-1] for address in seen) + ended == tried


def test_mistakes_of_the_configuration_are_named() -> None:
    config = SubscriptionsConfig(private_sinks=("10.1.0.0/99", "10.1.2.3.4", "ok.internal", "a b"), origin="a b")
    keys = [key for key, _ in subscription_mistakes(config)]
    assert keys == [
        "subscriptions.private_sinks[0]",
        "subscriptions.private_sinks[1]",
        "subscriptions.private_sinks[3]",
        "subscriptions.origin",
    ]
