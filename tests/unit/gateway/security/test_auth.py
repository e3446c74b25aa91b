import asyncio
from itertools import count

import pytest
from argon2 import PasswordHasher

from controller.api.client import User
from gateway.base.config_reader import Hash, Secret
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Authenticate
from gateway.security import passwords
from gateway.security.auth import TRUSTED_GATEWAY, Authenticator
from gateway.security.auth_settings import AuthConfig, UserConfig
from gateway.security.passwords import PASSWORD_BYTES_MAX, WAITING_COUNT_MAX, ComparisonCost, Passwords, hash_password
from gateway.security.scram import derive

CONFIG = AuthConfig(users={"bridge": UserConfig(password=Secret("s3cret"), trusted_gateway=True)})


def ask(username, password, config=CONFIG, *, loopback=True, mechanism="password", users=()):
    request = Authenticate(mechanism=mechanism, username=username, password=password)
    known = {user.name: user for user in users}
    authenticator = Authenticator(config, known.get, secret=str.encode, now_ms=lambda: 0)
    return asyncio.run(authenticator.authenticate(request, loopback=loopback))


def test_a_user_is_admitted_by_the_password_from_anywhere():
    assert ask("bridge", b"s3cret", loopback=False) == Principal(name="bridge", trusted_gateway=True)


@pytest.mark.parametrize("password", [b"", b"S3cret", b"Secret(***)", str(Secret("s3cret")).encode(), b"s3cret\0"])
def test_any_other_password_is_refused(password):
    with pytest.raises(Refusal) as refused:
        ask("bridge", password)
    assert refused.value.cause is Cause.UNAUTHENTICATED


def test_an_unknown_name_and_a_wrong_password_sound_the_same():
    with pytest.raises(Refusal) as unknown:
        ask("nobody", b"x")
    with pytest.raises(Refusal) as wrong:
        ask("bridge", b"x")
    assert str(unknown.value) == str(wrong.value)


@pytest.mark.parametrize(
    ("rule", "loopback", "admitted"),
    [("loopback", True, True), ("loopback", False, False), ("everyone", False, True), ("nobody", True, False)],
)
def test_guests_and_the_nameless_are_admitted_by_their_rules(rule, loopback, admitted):
    config = AuthConfig(anonymous=rule, guest=rule)
    for username, password, mechanism in (("guest", b"guest", "password"), ("", b"", "anonymous")):
        if admitted:
            assert ask(username, password, config, loopback=loopback, mechanism=mechanism).name == username
        else:
            with pytest.raises(Refusal):
                ask(username, password, config, loopback=loopback, mechanism=mechanism)


def test_a_configured_guest_needs_the_configured_password():
    config = AuthConfig(users={"guest": UserConfig(password=Secret("other"))})
    with pytest.raises(Refusal):
        ask("guest", b"guest", config)


# ---- users of the cluster


@pytest.mark.slow
def test_a_user_of_the_cluster_is_admitted_and_one_of_the_configuration_comes_first():
    users = [
        User(name="fleet", password=hash_password(b"pw"), rights={TRUSTED_GATEWAY: True}),
        User(name="bridge", password=hash_password(b"other")),
    ]
    assert ask("fleet", b"pw", users=users) == Principal(
        name="fleet", trusted_gateway=True, rights={TRUSTED_GATEWAY: True}
    )
    assert ask("bridge", b"s3cret", users=users).trusted_gateway
    for name, password in (("fleet", b"PW"), ("fleet", b""), ("bridge", b"other"), ("nobody", b"pw")):
        with pytest.raises(Refusal) as refused:
            ask(name, password, users=users)
        assert refused.value.cause is Cause.UNAUTHENTICATED


@pytest.mark.parametrize("hashed", ["", "plain", "$argon2id$v=19$m=19456,t=2,p=1$broken"])
def test_a_hash_that_is_none_admits_nobody(hashed):
    with pytest.raises(Refusal):
        ask("fleet", b"pw", users=[User(name="fleet", password=hashed)])


@pytest.mark.parametrize("password", [b"", bytes(PASSWORD_BYTES_MAX + 1)])
def test_a_password_has_a_length(password):
    with pytest.raises(ValueError, match="has 1 to"):
        hash_password(password)


def test_what_was_right_is_remembered_and_another_password_is_not():
    async def main():
        passwords, hashed = Passwords(), hash_password(b"pw")
        compared = []
        monitored = passwords._work._pool.submit
        passwords._work._pool.submit = lambda *args: compared.append(args) or monitored(*args)
        assert await passwords.verify(hashed, b"pw")
        assert await passwords.verify(hashed, b"pw")
        assert len(compared) == 1
        assert not await passwords.verify(hashed, b"PW")
        assert not await passwords.verify(hash_password(b"new"), b"pw")
        assert len(compared) == 3
        assert not await passwords.verify(hashed, bytes(PASSWORD_BYTES_MAX + 1))

    asyncio.run(main())


OTHER_HASHES = {
    "scram": str(derive("pw", salt=b"0123456789abcdef")),
    "cheap": PasswordHasher(time_cost=1, memory_cost=64, parallelism=1).hash(b"pw"),
    "dear": PasswordHasher(time_cost=3, memory_cost=64, parallelism=1).hash(b"pw"),
    "none": "$argon2id$v=19$m=19456,t=2,p=1$broken",
}
COSTS_S = {"SCRAM-SHA-256$15000": 0.005, "$argon2id$v=19$m=64,t=1,p=1": 0.001, "$argon2id$v=19$m=64,t=3,p=1": 0.5}


@pytest.fixture
def timed(monkeypatch):
    """Returns a function that takes the time of a refusal, by a clock that only comparisons and waits move."""
    now_s = 0.0

    def compare(hashed, password):
        nonlocal now_s
        now_s += COSTS_S.get(passwords._kind(hashed), 0.02)
        return False

    async def sleep(wait_s):
        nonlocal now_s
        now_s += wait_s

    async def refuse(hashed):
        began_s, effort = now_s, ComparisonCost()
        if hashed is None:
            await subject.pretend(b"wrong", effort=effort)
        else:
            assert not await subject.verify(hashed, b"wrong", effort=effort)
        await subject.even_out(effort)
        return now_s - began_s

    monkeypatch.setattr(passwords, "_is_right", compare)
    subject = Passwords(clock_s=lambda: now_s, sleep=sleep)
    return refuse


@pytest.mark.parametrize("kind", ["scram", "cheap", "none"])
def test_a_refusal_takes_as_long_whatever_hash_a_user_has_as_for_a_name_that_nobody_has(timed, kind):
    async def main():
        hashes = [OTHER_HASHES[kind], None, OTHER_HASHES[kind], hash_password(b"pw"), None]
        assert [await timed(hashed) for hashed in hashes] == pytest.approx([0.04] * 5)

    asyncio.run(main())


def test_a_refusal_takes_as_long_for_other_names_as_for_a_user_with_a_hash_that_costs_more(timed):
    async def main():
        hashes = [OTHER_HASHES["dear"], None, OTHER_HASHES["scram"], OTHER_HASHES["dear"], hash_password(b"pw")]
        assert [await timed(hashed) for hashed in hashes] == pytest.approx([1.0] * 5)

    asyncio.run(main())


@pytest.mark.parametrize("name", ["fleet", "bridge", "nobody"])
def test_a_refusal_waits_when_it_is_counted(name):
    user = User(name="fleet", password=hash_password(b"pw"))
    config = AuthConfig(failures_max=1, users=CONFIG.users)
    authenticator = Authenticator(config, {"fleet": user}.get, secret=str.encode, now_ms=lambda: 0)
    waited = []

    async def sleep(wait_s):
        with pytest.raises(Refusal):
            authenticator.throttle.check("192.0.2.1", now_ms=0)
        waited.append(wait_s)

    authenticator.passwords = Passwords(clock_s=count().__next__, sleep=sleep)
    request = Authenticate(mechanism="password", username=name, password=b"wrong")
    with pytest.raises(Refusal):
        asyncio.run(authenticator.authenticate(request, loopback=False, address="192.0.2.1"))
    assert waited == [1]


@pytest.mark.parametrize("kind", ["scram", "cheap", "dear"])
def test_hashes_of_others_admit_who_has_the_password(kind):
    user = User(name="fleet", password=OTHER_HASHES[kind])
    assert ask("fleet", b"pw", users=[user]).name == "fleet"
    with pytest.raises(Refusal):
        ask("fleet", b"PW", users=[user])


def test_a_flood_of_passwords_is_refused_beyond_a_limit():
    async def main():
        passwords = Passwords()
        asked = [passwords.verify("none", b"%d" % n) for n in range(WAITING_COUNT_MAX + 10)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        refused = [one for one in results if isinstance(one, Refusal)]
        assert len(refused) == 10
        assert {one.cause for one in refused} == {Cause.OVERLOAD}

    asyncio.run(main())


# ---- another configuration


def authenticator_of(config, users=()):
    return Authenticator(config, {user.name: user for user in users}.get, secret=str.encode, now_ms=lambda: 0)


def test_another_configuration_names_the_users_that_are_not_as_before():
    kept, other = UserConfig(password=Secret("x")), UserConfig(password=Secret("y"))
    subject = authenticator_of(AuthConfig(users={"kept": kept, "gone": kept, "changed": kept}))
    changed = subject.reload(
        AuthConfig(users={"kept": UserConfig(password=Secret("x")), "changed": other, "new": kept})
    )
    assert changed == {"gone", "changed", "new"}
    request = Authenticate(mechanism="password", username="gone", password=b"x")
    with pytest.raises(Refusal):
        asyncio.run(subject.authenticate(request, loopback=True))


def test_who_has_no_password_of_his_own_stays_where_the_rules_still_let_him_in():
    subject = authenticator_of(AuthConfig(anonymous="everyone", guest="everyone"))
    shared = (Principal(name=""), Principal(name="guest", guest=True))
    subject.reload(AuthConfig(anonymous="loopback", guest="loopback"))
    assert [subject.admits(one, loopback=True) for one in shared] == [True, True]
    assert [subject.admits(one, loopback=False) for one in shared] == [False, False]
    assert subject.admits(Principal(name="guest"), loopback=False)  # by a token


@pytest.mark.anyio
async def test_a_password_that_is_changed_while_it_is_compared_does_not_count():
    subject = authenticator_of(AuthConfig(users={"ada": UserConfig(password_hash=Hash(hash_password(b"old")))}))
    request = Authenticate(mechanism="password", username="ada", password=b"old")
    asking = asyncio.ensure_future(subject.authenticate(request, loopback=True))
    await asyncio.sleep(0)  # it is being compared
    subject.reload(AuthConfig())
    with pytest.raises(Refusal):
        await asking
