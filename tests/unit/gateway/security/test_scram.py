"""SCRAM-SHA-256 between the gateway and scramp's client, and the exchange that RFC 7677 shows."""

import asyncio
from base64 import b64decode

import pytest
from scramp import ScramClient, ScramException

from controller.api.client import User
from gateway.base.config_reader import Hash, Secret
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Authenticate, Challenge
from gateway.security.auth import Authenticator
from gateway.security.auth_settings import AuthConfig, UserConfig
from gateway.security.passwords import hash_password, verifier_in
from gateway.security.scram import ITERATIONS, MECHANISM, MESSAGE_BYTES_MAX, ScramExchange, Verifier, derive

USERS = {
    "alice": UserConfig(password=Secret("pencil"), trusted_gateway=True),
    "bob": UserConfig(password_hash=Hash(str(derive("pencil", salt=b"0123456789abcdef")))),
    "carol": UserConfig(password_hash=Hash(hash_password(b"pencil").split()[0])),  # argon2id's alone
    "dave": UserConfig(),
    "eve": UserConfig(password=Secret("a\x07b")),  # a character that SASLprep does not allow
}
CLUSTER = {
    user.name: user
    for user in (
        User(name="fleet", password=hash_password(b"pencil"), rights={"trusted_gateway": True}),
        User(name="old", password=hash_password(b"pencil").split()[0]),
        User(name="alice", password=hash_password(b"other")),
    )
}


def authenticator(*, secret=b"key"):
    config = AuthConfig(users=USERS)
    return Authenticator(config, CLUSTER.get, secret=lambda text: secret + text.encode(), now_ms=lambda: 0)


def prove(name, password="pencil", *, username="", by=None, client=None):
    """Returns the user that a client turns out to be."""

    async def exchange():
        subject = by or authenticator()
        scram = client or ScramClient([MECHANISM], name, password)
        first = Authenticate(mechanism=MECHANISM, username=username, data=scram.get_client_first().encode())
        challenge = await subject.authenticate(first, loopback=True)
        assert isinstance(challenge, Challenge)
        scram.set_server_first(challenge.data.decode())
        final = Authenticate(
            mechanism=MECHANISM,
            username=username,
            data=scram.get_client_final().encode(),
            exchange=challenge.exchange,
        )
        principal = await subject.authenticate(final, loopback=True)
        scram.set_server_final(principal.final.decode())
        return principal

    return asyncio.run(exchange())


def challenged(name, *, by=None):
    """Returns the salt and the iterations that a name gets."""

    async def first():
        request = Authenticate(mechanism=MECHANISM, data=f"n,,n={name},r=abc".encode())
        challenge = await (by or authenticator()).authenticate(request, loopback=True)
        said = dict(part.split("=", 1) for part in challenge.data.decode().split(","))
        return said["s"], int(said["i"])

    return asyncio.run(first())


def test_the_exchange_of_rfc_7677():
    verifier = derive("pencil", salt=b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), iterations=4_096)
    exchange = ScramExchange({"user": verifier}.__getitem__, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert exchange.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO").decode() == (
        f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert not exchange.over
    proof = f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert exchange.step(proof.encode()) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.over
    assert exchange.name == "user"
    with pytest.raises(Refusal):
        exchange.step(proof.encode())


@pytest.mark.parametrize("name", ["alice", "bob", "fleet"])
def test_users_of_the_configuration_and_of_the_cluster(name):
    principal = prove(name)
    assert principal.name == name
    assert principal.trusted_gateway is (name != "bob")


@pytest.mark.parametrize("name", ["carol", "dave", "eve", "old", "guest", "nobody", "=,"])
def test_users_without_a_verifier_are_like_nobody(name):
    with pytest.raises(Refusal, match="wrong name or password") as refused:
        prove(name)
    assert refused.value.cause is Cause.UNAUTHENTICATED


@pytest.mark.parametrize("name", ["alice", "bob", "fleet"])
def test_a_wrong_password_sounds_the_same(name):
    with pytest.raises(Refusal, match=r"\Awrong name or password\Z"):
        prove(name, "Pencil")


def test_the_configurations_user_comes_first():
    with pytest.raises(Refusal):
        prove("alice", "other")


def test_names_that_nobody_has_look_like_others():
    one, other = authenticator(), authenticator()
    assert challenged("nobody", by=one) == challenged("nobody", by=other), "also of another process, or later"
    assert challenged("alice", by=one) == challenged("alice", by=other)
    assert challenged("nobody") != challenged("nobody", by=authenticator(secret=b"another cluster's"))
    salts = {challenged(name)[0] for name in ("nobody", "nobody2", "alice", "carol", "fleet")}
    assert len(salts) == 5
    assert {len(b64decode(salt)) for salt in salts} == {16}
    assert {challenged(name)[1] for name in ("nobody", "alice", "fleet", "old")} == {ITERATIONS}


def test_the_name_of_the_connect_has_to_be_the_same():
    assert prove("alice", username="alice").name == "alice"
    with pytest.raises(Refusal):
        prove("alice", username="bob")


def test_a_name_is_prepared_as_sasl_says():
    assert prove("a\u00adlice").name == "alice"  # a soft hyphen is mapped to nothing (RFC 3454, B.1)


@pytest.mark.parametrize("first", [b"p=tls-unique,,n=alice,r=abc", b"n,a=bob,n=alice,r=abc", b"n,,m=x,n=alice,r=abc"])
def test_what_is_not_offered_is_refused(first):
    with pytest.raises(Refusal):
        ScramExchange(lambda name: derive("x", salt=bytes(16))).step(first)


def test_a_message_has_a_length():
    with pytest.raises(Refusal):
        ScramExchange(lambda name: derive("x", salt=bytes(16))).step(b"n,,n=a,r=" + b"x" * MESSAGE_BYTES_MAX)


def test_a_server_that_knows_no_verifier_cannot_pass_for_us():
    client = ScramClient([MECHANISM], "alice", "pencil")
    client.get_client_first()
    with pytest.raises(ScramException):
        client.set_server_first("r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")


# ---- verifiers


def test_a_verifier_is_written_as_postgresql_does():
    verifier = derive("pencil", salt=b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), iterations=4_096)
    assert str(verifier) == (
        "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$"
        "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    )
    assert Verifier.parse(str(verifier)) == verifier
    assert verifier.admits(b"pencil")
    assert not verifier.admits(b"Pencil")
    assert not verifier.admits(b"\xff")
    assert repr(verifier) == "Verifier(***)"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SCRAM-SHA-256$",
        "SCRAM-SHA-1$4096:W22ZaJ0SNY7soEsUEjb6gQ==$a:b",
        "SCRAM-SHA-256$4095:{s}${k}:{k}",
        "SCRAM-SHA-256$1000001:{s}${k}:{k}",
        "SCRAM-SHA-256$99999999:{s}${k}:{k}",
        "SCRAM-SHA-256$4096:c2hvcnQ=${k}:{k}",
        "SCRAM-SHA-256$4096:{s}${s}:{k}",
        "SCRAM-SHA-256$4096:{s}${k}:{s}",
        "SCRAM-SHA-256$4096:{s}${k}:!",
        "SCRAM-SHA-256$4096:{s}${k}:{k} ",
    ],
)
def test_what_is_no_verifier(text):
    salt, key = "W22ZaJ0SNY7soEsUEjb6gQ==", "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    with pytest.raises(ValueError, match=r"verifier|iterations|salt"):
        Verifier.parse(text.format(s=salt, k=key))


def test_a_password_is_kept_as_both_kinds_of_hash_where_it_can_be():
    assert len(hash_password(b"pencil").split()) == 2
    assert verifier_in(hash_password(b"pencil")).admits(b"pencil")
    for odd in (b"\xff", b"a\x00b"):
        assert verifier_in(hash_password(odd)) is None


def test_a_principal_of_scram_does_not_expire():
    assert prove("alice") == Principal(name="alice", trusted_gateway=True, final=prove_final())


def prove_final():
    """Returns bytes equal to any others, because the last message holds random nonces and differs each time."""

    class Any(bytes):
        def __eq__(self, other):
            return isinstance(other, bytes)

        __hash__ = bytes.__hash__

    return Any()


@pytest.mark.parametrize("users", [{}, {**USERS, "alice": UserConfig(password=Secret("other"))}])
def test_who_is_removed_or_changed_during_an_exchange_has_proven_nothing(users):
    class Hurried(ScramClient):
        def get_client_final(self):
            subject.reload(AuthConfig(users=users))
            return super().get_client_final()

    subject = authenticator()
    with pytest.raises(Refusal):
        prove("alice", by=subject, client=Hurried([MECHANISM], "alice", "pencil"))
    assert prove("fleet", by=subject).name == "fleet"
