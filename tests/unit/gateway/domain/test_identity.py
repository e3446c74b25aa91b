"""Certificates, tokens and hashes where a name and a password would be; and addresses that try too often."""

import asyncio
import json
from collections import Counter
from time import thread_time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from jwt.algorithms import OKPAlgorithm

from controller.api.client import User
from gateway.base.config_reader import Hash, Secret
from gateway.domain.errors import Cause, Refusal
from gateway.domain.identity import identity_of
from gateway.domain.principal import Principal
from gateway.port.adapter import Authenticate
from gateway.security.auth import Authenticator, same_principal
from gateway.security.auth_settings import AuthConfig, JwtConfig, TlsConfig, UserConfig
from gateway.security.passwords import check_hash, hash_password
from gateway.security.scram import derive
from gateway.security.throttle import ADDRESSES_COUNT_MAX, PERIOD_MS, Throttle
from tests.support.process.clock import Clock

NOW_MS = 1_700_000_000_000
KEY = ed25519.Ed25519PrivateKey.generate()
CERTIFICATE = {
    "subject": ((("countryName", "DE"),), (("organizationName", "Plant"), ("commonName", "device-7"))),
    "subjectAltName": (
        ("DNS", "device-7.plant"),
        ("URI", "spiffe://plant/device-7"),
        ("email", "seven@plant"),
        ("IP Address", "10.0.0.7"),
    ),
}
FLEET = User(name="fleet", password=hash_password(b"pw"), rights={"trusted_gateway": True})


def subject(*, tls=None, clock=None, users=None, **said):
    said.setdefault("anonymous", "nobody")
    config = AuthConfig(users=users or {"alice": UserConfig(password=Secret("pw"))}, **said)
    return Authenticator(
        config, {"fleet": FLEET}.get, secret=str.encode, now_ms=clock or Clock(NOW_MS), tls=tls or TlsConfig()
    )


def ask(by, mechanism, username="", password=b"", *, certificate=CERTIFICATE, address="10.0.0.7"):
    request = Authenticate(mechanism=mechanism, username=username, password=password)
    work = by.authenticate(request, loopback=False, address=address, certificate=certificate)
    return asyncio.run(work)


def refused(*args, **named):
    with pytest.raises(Refusal) as caught:
        ask(*args, **named)
    return caught.value


# ---- certificates


@pytest.mark.parametrize(
    ("kind", "name"),
    [("cn", "device-7"), ("dns", "device-7.plant"), ("uri", "spiffe://plant/device-7"), ("email", "seven@plant")],
)
def test_whom_a_certificate_names(kind, name):
    assert identity_of(CERTIFICATE, kind) == name
    assert identity_of({}, kind) is None
    assert identity_of(None, kind) is None


@pytest.mark.parametrize(
    "certificate",
    [
        {"subject": ((("commonName", "a"), ("commonName", "b")),)},
        {"subject": ((("commonName", "a"),), (("commonName", "b"),))},
        {"subject": ((("commonName", ""),),)},
        {"subject": ((("commonName", "a\0b"),),)},
        {"subject": ((("commonName", "x" * 256),),)},
        {"subject": ((("organizationName", "a"),),)},
        {"subjectAltName": (("DNS", "a"), ("DNS", "b"))},
    ],
)
def test_a_certificate_that_names_nobody_or_several(certificate):
    assert identity_of(certificate, "cn") is None
    assert identity_of(certificate, "dns") is None


def test_a_client_with_a_certificate_needs_no_name():
    by = subject()
    assert ask(by, "anonymous") == Principal(name="device-7")
    assert ask(by, "external") == Principal(name="device-7")
    assert ask(by, "external", "device-7") == Principal(name="device-7")
    assert ask(by, "password", "device-7") == Principal(name="device-7")
    assert ask(subject(tls=TlsConfig(client_identity="uri")), "anonymous").name == "spiffe://plant/device-7"


def test_a_certificate_is_no_bypass():
    by = subject()
    assert refused(by, "external", "alice").cause is Cause.UNAUTHENTICATED
    assert refused(by, "external", certificate=None).cause is Cause.UNAUTHENTICATED
    assert refused(by, "anonymous", certificate={}).cause is Cause.UNAUTHENTICATED
    assert refused(by, "password", "device-7", b"guess").cause is Cause.UNAUTHENTICATED
    assert refused(by, "password", "device-7", certificate=None).cause is Cause.UNAUTHENTICATED
    assert refused(by, "password", "", certificate=None).cause is Cause.UNAUTHENTICATED


def test_a_name_and_a_certificate_agree_or_the_certificate_names_the_device():
    assert refused(subject(), "password", "alice", b"pw").cause is Cause.UNAUTHENTICATED
    by = subject(tls=TlsConfig(client_user_agrees=False))
    assert ask(by, "password", "alice", b"pw") == Principal(name="alice", device="device-7")
    assert refused(by, "password", "alice", b"guess").cause is Cause.UNAUTHENTICATED
    assert ask(by, "password", "alice", b"pw", certificate=None) == Principal(name="alice")


def test_a_name_has_its_rights_however_it_is_proven():
    users = {"device-7": UserConfig(trusted_gateway=True)}
    assert ask(subject(users=users), "anonymous").trusted_gateway
    certificate = {"subject": ((("commonName", "fleet"),),)}
    assert ask(subject(), "anonymous", certificate=certificate).rights == {"trusted_gateway": True}


def test_who_is_the_same():
    alice = Principal(name="alice", expires_at_ms=1)
    assert same_principal(alice, Principal(name="alice", trusted_gateway=True))
    assert not same_principal(alice, Principal(name="bob"))
    assert not same_principal(alice, Principal(name="alice", device="d7"))


# ---- hashes in the configuration


@pytest.mark.slow
def test_a_user_may_be_known_by_a_hash():
    for hashed in (hash_password(b"pw"), hash_password(b"pw").split()[0], str(derive("pw", salt=bytes(16)))):
        by = subject(users={"bob": UserConfig(password_hash=Hash(hashed))})
        assert ask(by, "password", "bob", b"pw", certificate=None) == Principal(name="bob")
        for wrong in (b"", b"PW", hashed.encode()):
            assert refused(by, "password", "bob", wrong, certificate=None).cause is Cause.UNAUTHENTICATED


def test_a_user_without_a_password_has_none():
    by = subject(users={"device-7": UserConfig(), "fleet": UserConfig()})
    for password in (b"", b"pw", b"None"):
        assert refused(by, "password", "device-7", password, certificate=None).cause is Cause.UNAUTHENTICATED
        assert refused(by, "password", "fleet", password, certificate=None), "the configuration's user comes first"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "secret",
        "$argon2id$",
        "$argon2i$v=19$m=19456,t=2,p=1$c29tZXNhbHQ$c29tZWhhc2g",
        "$argon2id$v=19$m=4194304,t=2,p=1$c29tZXNhbHRzYWx0$c29tZWhhc2hzb21laGFzaHNvbWVoYXNo",
        "$argon2id$v=19$m=19456,t=999,p=1$c29tZXNhbHRzYWx0$c29tZWhhc2hzb21laGFzaHNvbWVoYXNo",
        "SCRAM-SHA-256$4096:secret",
    ],
)
def test_what_is_no_hash(text):
    with pytest.raises(ValueError, match=r".+") as caught:
        check_hash(text)
    assert "secret" not in str(caught.value)


def test_what_hash_password_makes_is_a_hash():
    check_hash(hash_password(b"pw"))


def test_names_are_not_told_by_the_time_that_a_refusal_takes(monkeypatch):
    worked = []
    by = subject()
    kept = by.passwords.work
    monkeypatch.setattr(
        by.passwords, "work", lambda work, *, network: worked.append(thread_time()) or kept(work, network=network)
    )
    for name in ("alice", "fleet", "nobody", "guest"):
        worked.clear()
        assert refused(by, "password", name, b"guess", certificate=None)
        assert len(worked) == 1, name


# ---- tokens


@pytest.fixture
def with_tokens(tmp_path):
    def made(clock=None, tls=None, **said):
        file = tmp_path / "jwks.json"
        file.write_text(json.dumps({"keys": [json.loads(OKPAlgorithm.to_jwk(KEY.public_key()))]}))
        return subject(jwt=JwtConfig(jwks_file=file, leeway_s=0, **said), clock=clock, tls=tls)

    return made


def token(sub="fleet", **claims):
    return jwt.encode({"sub": sub, "exp": NOW_MS // 1000 + 60, **claims}, KEY, algorithm="EdDSA").encode()


@pytest.mark.parametrize(
    ("mechanism", "username"), [("bearer", ""), ("password", ""), ("password", "x"), ("password", "fleet")]
)
def test_a_token_in_a_passwords_place_or_as_bearer(with_tokens, mechanism, username):
    found = ask(with_tokens(), mechanism, username, token(), certificate=None)
    expected = Principal(name="fleet", trusted_gateway=True, rights=FLEET.rights, expires_at_ms=NOW_MS + 60_000)
    assert found == expected


def test_the_user_name_may_have_to_be_the_tokens(with_tokens):
    by = with_tokens(username_agrees=True)
    assert ask(by, "password", "fleet", token(), certificate=None).name == "fleet"
    assert ask(by, "password", "", token(), certificate=None).name == "fleet"
    assert refused(by, "password", "x", token(), certificate=None).cause is Cause.UNAUTHENTICATED


def test_a_token_and_a_certificate_agree(with_tokens):
    assert refused(with_tokens(), "bearer", password=token()).cause is Cause.UNAUTHENTICATED
    assert ask(with_tokens(), "bearer", password=token("device-7")).name == "device-7"
    by = with_tokens(tls=TlsConfig(client_user_agrees=False))
    assert ask(by, "bearer", password=token()).device == "device-7"
    by = with_tokens(tls=TlsConfig(client_user_agrees=False), device_claim="d")
    assert ask(by, "bearer", password=token(d="claimed")).device == "claimed"


def test_a_token_ends(with_tokens):
    clock = Clock(NOW_MS)
    by = with_tokens(clock)
    clock.ms += 59_999
    assert ask(by, "bearer", password=token(), certificate=None).expires_at_ms == NOW_MS + 60_000
    clock.ms += 1
    assert str(refused(by, "bearer", password=token(), certificate=None)) == "the token has expired"


def test_tokens_are_taken_only_where_there_are_keys():
    assert refused(subject(), "bearer", password=token(), certificate=None).cause is Cause.UNAUTHENTICATED
    assert str(refused(subject(), "password", "x", token(), certificate=None)) == "wrong name or password"


def test_passwords_are_passwords_where_tokens_are_taken_too(with_tokens):
    assert ask(with_tokens(), "password", "alice", b"pw", certificate=None).name == "alice"


# ---- addresses that try too often


def test_an_address_that_fails_too_often_waits():
    clock = Clock(NOW_MS)
    by = subject(failures_max=2, clock=clock)
    for _ in range(2):
        assert refused(by, "password", "alice", b"guess", certificate=None).cause is Cause.UNAUTHENTICATED
    waits = refused(by, "password", "alice", b"pw", certificate=None)
    assert (waits.cause, waits.retry_after_ms) == (Cause.QUOTA, PERIOD_MS)
    assert ask(by, "password", "alice", b"pw", certificate=None, address="10.0.0.8").name == "alice"
    assert ask(by, "anonymous").name == "device-7", "a certificate is not guessed"
    clock.ms += PERIOD_MS
    assert ask(by, "password", "alice", b"pw", certificate=None).name == "alice"


def test_many_guesses_at_once_are_no_more_guesses():
    by = subject(failures_max=2)

    async def main():
        guesses = [
            Authenticate(mechanism="password", username="fleet", password=one) for one in (b"1", b"2", b"3", b"pw")
        ]
        tries = [by.authenticate(one, loopback=False, address="10.0.0.7") for one in guesses]
        return await asyncio.gather(*tries, return_exceptions=True)

    *wrong, right = asyncio.run(main())
    assert Counter(one.cause for one in wrong) == {Cause.UNAUTHENTICATED: 2, Cause.QUOTA: 1}
    assert right.cause is Cause.QUOTA, "it is the password, and nobody is told"


def test_mechanisms_that_do_not_exist_are_no_guesses():
    by = subject(failures_max=1)
    assert refused(by, "telepathy").cause is Cause.UNAUTHENTICATED
    assert ask(by, "external").name == "device-7"


def test_failures_are_counted_by_the_period():
    throttle = Throttle(2)
    throttle.failed("a", now_ms=0)
    throttle.failed("a", now_ms=PERIOD_MS)
    throttle.check("a", now_ms=PERIOD_MS)
    throttle.failed("a", now_ms=PERIOD_MS + 1)
    with pytest.raises(Refusal):
        throttle.check("a", now_ms=PERIOD_MS + 1)
    throttle.check("a", now_ms=2 * PERIOD_MS)


def test_a_clock_that_is_set_back_makes_no_address_wait_longer_than_a_period():
    throttle, hour_ms = Throttle(1), 3_600_000
    throttle.failed("a", now_ms=hour_ms)
    with pytest.raises(Refusal) as refused:
        throttle.check("a", now_ms=0)
    assert refused.value.retry_after_ms == PERIOD_MS
    throttle.check("a", now_ms=PERIOD_MS)


def test_addresses_of_one_network_of_ipv6_are_one():
    throttle = Throttle(2)
    throttle.failed("2001:db8::1", now_ms=0)
    throttle.failed("2001:db8::2", now_ms=0)
    with pytest.raises(Refusal):
        throttle.check("2001:db8::3", now_ms=0)
    throttle.check("2001:db8:0:1::3", now_ms=0)


def test_addresses_are_forgotten():
    throttle = Throttle(1)
    for n in range(ADDRESSES_COUNT_MAX + 1):
        throttle.failed(str(n), now_ms=n)
    throttle.check("0", now_ms=1)
    with pytest.raises(Refusal):
        throttle.check("1", now_ms=2)
