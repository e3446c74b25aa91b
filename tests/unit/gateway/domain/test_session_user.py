"""The user that a session belongs to, and the users who may take it up: of one process, and across its restarts."""

import random

import msgspec
import pytest

from gateway.delivery.fanout import Fanout
from gateway.domain.errors import Cause
from gateway.domain.principal import Principal
from gateway.domain.session_user import NotItsUser, SessionUser, check_user, user_of
from gateway.ownership.owner_keys import OwnerRecord, ReleaseRequest, decode_owner, decode_release_request
from gateway.port.adapter import Close, Outcome
from gateway.port.sessions import OpenSession, SaveSession, Will
from gateway.security.auth import Authenticator
from gateway.security.auth_settings import AuthConfig
from gateway.sessions.record import SessionRecord, session_key
from gateway.sessions.sessions import Sessions
from gateway.sessions.wills import Wills
from store.api.message import Message
from store.base.errors import StoreOverloaded
from store.local.local import LocalStore
from tests.support.gateway.fanout_rig import SessionHolder
from tests.support.mqtt.mqtt_driver import Driver
from tests.support.process.clock import Clock

pytestmark = pytest.mark.anyio

KEY = session_key("mqtt", "dev")
NOBODY = SessionUser()
ALICE, MALLORY = SessionUser("alice"), SessionUser("mallory")
ONE, OTHER = SessionUser("fleet", "one"), SessionUser("fleet", "other")


# ---- who may


@pytest.mark.parametrize(
    ("principal", "user"),
    [
        (Principal(name=""), NOBODY),
        (Principal(name="", device="claimed by nobody"), NOBODY),
        (Principal(name="alice"), ALICE),
        (Principal(name="alice", device="alice"), ALICE),
        (Principal(name="fleet", device="one"), ONE),
    ],
)
def test_a_session_is_of_who_was_proven(principal, user):
    assert user_of(principal) == user


@pytest.mark.parametrize(
    ("user", "who", "may"),
    [
        (None, MALLORY, True),  # not known whose it is
        (NOBODY, NOBODY, True),
        (NOBODY, MALLORY, True),
        (ALICE, ALICE, True),
        (ALICE, MALLORY, False),
        (ALICE, NOBODY, False),
        (ALICE, None, True),  # it does not matter who asks
        (SessionUser("fleet"), ONE, True),
        (ONE, ONE, True),
        (ONE, OTHER, False),
        (ONE, SessionUser("fleet"), False),
        (ONE, SessionUser("tank", "one"), False),
        (ALICE, SessionUser("mallory", "alice"), False),
        (ALICE, SessionUser("Alice"), False),
    ],
)
def test_who_may_take_what(user, who, may):
    if may:
        check_user("s", user, who)
        return
    with pytest.raises(NotItsUser) as refused:
        check_user("s", user, who)
    assert refused.value.cause is Cause.FORBIDDEN
    assert "alice" not in refused.value.detail, "nobody is told whose it is"


def test_a_switch_lets_go_of_sessions():
    def user(name):
        return authenticator.session_user(Principal(name=name))

    authenticator = Authenticator(AuthConfig(), lambda _: None, secret=str.encode, now_ms=int)
    assert (user("alice"), user("")) == (ALICE, NOBODY)
    authenticator.reload(AuthConfig(sessions_bound=False))
    assert (user("alice"), user("")) == (None, None)


@pytest.mark.parametrize(("version", "code"), [(3, 5), (4, 5), (5, 0x87)])
@pytest.mark.parametrize("clean", [False, True])
def test_a_client_hears_that_it_is_not_authorized(version, code, clean):
    driver = Driver(version)
    driver.opened = Outcome(error=NotItsUser())
    connack = driver.connect(clean=clean)
    assert (connack.code, connack.session_present) == (code, False)
    (end,) = driver.take(Close)
    assert not end.again, "the client identifier is not its own to be slowed down"


# ---- what is stored


class OldRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A session as versions stored it that did not know of users."""

    protocol: str
    session_id: str
    state: bytes
    expiry_s: int | None
    left_ms: int | None
    marked: bool = False


def test_records_are_read_by_versions_before_and_after():
    old = OldRecord(protocol="mqtt", session_id="dev", state=b"s", expiry_s=None, left_ms=7)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=SessionRecord)
    assert (read.state, read.left_ms, read.user) == (b"s", 7, None)
    new = msgspec.structs.replace(read, user=ONE)
    encoded = msgspec.msgpack.encode(new)
    assert msgspec.msgpack.decode(encoded, type=SessionRecord) == new
    assert msgspec.msgpack.decode(encoded, type=OldRecord) == old
    longer = encoded.replace(msgspec.msgpack.encode(ONE), msgspec.msgpack.encode(["fleet", "one", "to come"]))
    assert msgspec.msgpack.decode(longer, type=SessionRecord) == new


def test_owners_keys_are_read_by_versions_before_and_after():
    assert decode_owner(msgspec.msgpack.encode({"name": "n", "proxy": "p"})) == OwnerRecord("n", "p")
    assert decode_release_request(msgspec.msgpack.encode({"name": "n", "by": "a", "of": "b"})) == ReleaseRequest(
        "n", "a", "b"
    )
    assert msgspec.msgpack.encode(OwnerRecord("n", "p")) == msgspec.msgpack.encode({"name": "n", "proxy": "p"})
    assert decode_owner(msgspec.msgpack.encode(OwnerRecord("n", "p", ONE))) == OwnerRecord("n", "p", ONE)


# ---- one process


class UserSessions:
    """The sessions of one process; another one over the same store is the process started again."""

    def __init__(self, store, clock):
        self.store, self.clock = store, clock
        self.fanout = Fanout(store, queues_of=lambda _: None, group_of=lambda _: 0, spawn=None)
        self.published = []
        chance = random.Random(1)
        wills = Wills(store, lambda *published: self.published.append(published), now_ms=clock.now_ms, random=chance)
        self.sessions = Sessions(store, self.fanout, wills, now_ms=clock.now_ms)

    async def open(self, user, *, clean=False, expiry_s=None, will=None):
        holder = SessionHolder()
        request = OpenSession(session_id="dev", clean=clean, expiry_s=expiry_s, will=will)
        return holder, await self.sessions.open(holder, request, user)

    async def refuses(self, user, **asked):
        """Checks that a user who is not let in changes nothing, whatever else it asks for before it ends."""
        before, held = await self.entries(), dict(self.sessions.held)
        holder = SessionHolder()
        with pytest.raises(NotItsUser):
            await self.sessions.open(holder, OpenSession(session_id="dev", **{"clean": False, **asked}), user)
        self.sessions.drop_will(holder)
        self.sessions.settled(holder, ())
        await self.sessions.save(holder, SaveSession(state=b"its own", expiry_s=None))
        await self.sessions.end(holder)
        await self.close(holder)
        assert (await self.entries(), self.sessions.held) == (before, held)

    async def close(self, holder):
        holder.gone = True
        await self.sessions.close(holder)

    async def entries(self):
        return [(entry.key, entry.revision) for entry in await self.store.keys.prefix("")]

    async def record(self):
        return msgspec.msgpack.decode((await self.store.keys.get(KEY)).value, type=SessionRecord)


@pytest.fixture
async def rig(tmp_path):
    clock = Clock()
    async with await LocalStore.open(tmp_path, now_ms=clock.now_ms) as store:
        yield UserSessions(store, clock)


@pytest.mark.parametrize("who", [MALLORY, NOBODY])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("expiry_s", [0, 60, None])
async def test_whoever_is_connected_is_left_alone(rig, who, clean, expiry_s):
    will = Will(message=Message("w", b"gone"))
    alice, _ = await rig.open(ALICE, expiry_s=expiry_s, will=will)
    await rig.refuses(who, clean=clean)
    assert (alice.superseded, alice.shut, rig.published) == (0, 0, [])
    assert rig.sessions.held[KEY].will is not None
    await rig.sessions.save(alice, SaveSession(state=b"hers", expiry_s=None))
    rig.sessions.drop_will(alice)
    await rig.close(alice)
    _, opened = await rig.open(ALICE)
    assert (opened.present, opened.state) == (True, b"hers")


@pytest.mark.parametrize("who", [MALLORY, NOBODY])
@pytest.mark.parametrize("clean", [False, True])
async def test_a_session_that_is_kept_waits_for_its_user(rig, who, clean):
    alice, _ = await rig.open(ALICE, expiry_s=60)
    await rig.sessions.save(alice, SaveSession(state=b"hers", expiry_s=60))
    await rig.close(alice)
    await rig.refuses(who, clean=clean)
    assert rig.sessions.held == {}
    _, opened = await rig.open(ALICE)
    assert opened.state == b"hers"


async def test_its_user_takes_it_over_as_ever(rig):
    first, _ = await rig.open(ALICE)
    second, opened = await rig.open(ALICE)
    assert (first.superseded, second.superseded, opened.present) == (1, 0, True)
    _, opened = await rig.open(ALICE, clean=True)
    assert (second.superseded, opened.present) == (1, False)


@pytest.mark.parametrize("crash", [False, True])
async def test_a_restart_forgets_no_user(rig, crash):
    alice, _ = await rig.open(ALICE)
    await rig.sessions.save(alice, SaveSession(state=b"hers", expiry_s=None))
    if not crash:
        await rig.close(alice)
    again = UserSessions(rig.store, rig.clock)
    await again.refuses(MALLORY)
    await again.refuses(NOBODY, clean=True)
    _, opened = await again.open(ALICE)
    assert opened.state == b"hers"


async def test_what_has_ended_is_nobodys(rig):
    alice, _ = await rig.open(ALICE, expiry_s=60)
    await rig.close(alice)
    rig.clock.ms += 59_999
    await rig.refuses(MALLORY)
    rig.clock.ms += 1
    mallory, opened = await rig.open(MALLORY)
    assert not opened.present
    await rig.refuses(ALICE)
    await rig.sessions.end(mallory)
    alice, _ = await rig.open(ALICE, expiry_s=0)
    await rig.refuses(MALLORY)
    await rig.close(alice)
    await rig.open(MALLORY)


async def test_a_connection_that_is_gone_keeps_nobody_out_of_a_session_that_ends_with_it(rig):
    alice, _ = await rig.open(ALICE, expiry_s=0)
    alice.gone = True
    await rig.open(MALLORY)
    await rig.close(alice)
    await rig.refuses(ALICE)


async def test_a_session_whose_last_word_is_not_written_is_its_users(rig, monkeypatch):
    alice, _ = await rig.open(ALICE)

    async def full(*_args, **_named):
        raise StoreOverloaded("full")

    with monkeypatch.context() as patch:
        patch.setattr(rig.store.keys, "put", full)
        with pytest.raises(StoreOverloaded):
            await rig.close(alice)
        await rig.refuses(MALLORY)
        assert KEY in rig.sessions.unclosed
    await rig.refuses(MALLORY)
    await rig.open(ALICE)


async def test_a_session_without_a_name_is_of_whoever_takes_it(rig):
    first, _ = await rig.open(NOBODY)
    second, _ = await rig.open(NOBODY)
    alice, opened = await rig.open(ALICE)
    assert (first.superseded, second.superseded, opened.present) == (1, 1, True)
    assert (await rig.record()).user == ALICE
    await rig.refuses(NOBODY)
    await rig.close(alice)
    await rig.refuses(MALLORY)


async def test_a_session_of_before_is_of_whoever_takes_it(rig):
    old = OldRecord(protocol="mqtt", session_id="dev", state=b"old", expiry_s=None, left_ms=rig.clock.ms)
    await rig.store.keys.put(KEY, msgspec.msgpack.encode(old))
    alice, opened = await rig.open(ALICE)
    assert opened.state == b"old"
    await rig.close(alice)
    await rig.refuses(MALLORY)


async def test_a_session_of_a_device_is_of_no_other_one(rig):
    one, _ = await rig.open(SessionUser("fleet"))
    one, _ = await rig.open(ONE)
    for who in (OTHER, SessionUser("fleet"), NOBODY):
        await rig.refuses(who)
    await rig.close(one)
    await rig.refuses(OTHER)
    await rig.open(ONE)


async def test_unbound_sessions_are_anybodys(rig):
    alice, _ = await rig.open(ALICE)
    await rig.open(None)
    assert alice.superseded == 1
    assert (await rig.record()).user is None
    await rig.open(MALLORY)


async def test_a_connect_reads_its_record_once(rig, monkeypatch):
    read, kv_get = [], rig.store.keys.get

    async def counted(key, **named):
        read.append(key)
        return await kv_get(key, **named)

    monkeypatch.setattr(rig.store.keys, "get", counted)
    holder, _ = await rig.open(ALICE)
    await rig.open(ALICE)
    assert read.count(KEY) == 2
    holder, _ = await rig.open(ALICE)
    read.clear()
    await rig.close(holder)
    await rig.open(ALICE)
    assert read.count(KEY) == 1
