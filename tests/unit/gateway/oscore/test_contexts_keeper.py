"""The keeper of OSCORE's contexts: numbers that nobody uses twice, one user of a context at a time, and the file."""

import asyncio
import json
import stat

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import app
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.oscore.contexts_file import LOOK_INTERVAL_MS, Provisioned, read_contexts
from gateway.oscore.keeper import ContextKeeper
from gateway.ownership.owners import LocalOwners
from gateway.port.oscore import FindKeys, NextLostContexts, OpenContext
from store.base.process_errors import ConfigError
from store.local.local import LocalStore
from tests.support.gateway.proxies_rig import Proxy
from tests.support.process.clock import Clock

pytestmark = pytest.mark.anyio

ONE = {"user": "dev1", "client_id": "01", "server_id": "", "secret": "00" * 16}
TWO = {"user": "dev2", "client_id": "02", "server_id": "", "secret": "11" * 16, "context": "aa"}


class Socket:
    gone = False


def asked(kid=b"\x01", id_context=None, numbers=10, proven=True):
    return OpenContext(kid=kid, id_context=id_context, numbers=numbers, proven=proven)


def write(path, *contexts):
    path.write_text(json.dumps({"contexts": contexts}))


class KeeperRig:
    def __init__(self, store, path, owners=None):
        self.now_ms = 1_000_000
        self.provisioned = Provisioned(path, now_ms=lambda: self.now_ms)
        self.keeper = ContextKeeper(self.provisioned, store, owners or LocalOwners(store))

    async def open(self, socket, **parts):
        return await self.keeper.open(socket, asked(**parts), lambda name: Principal(name=name))


@pytest.fixture
async def store(tmp_path):
    async with await LocalStore.open(tmp_path / "data") as store:
        yield store


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "oscore.json", ONE, TWO)
    return tmp_path / "oscore.json"


async def test_numbers_are_reserved_once_for_all_times(store, path):
    rig, socket = KeeperRig(store, path), Socket()
    first = await rig.open(socket)
    assert (first.first, first.taken, first.unused, first.principal.name) == (0, True, True, "dev1")
    more = await rig.open(socket, numbers=5)
    assert (more.first, more.taken, more.unused) == (10, False, False)
    look = await rig.open(socket, numbers=0)
    assert (look.first, look.taken) == (15, False)
    again = await KeeperRig(store, path).open(Socket())  # as after a crash
    assert (again.first, again.taken, again.unused) == (15, True, False)


async def test_sockets_that_open_at_once_have_numbers_of_their_own(store, path):
    rig, socket = KeeperRig(store, path), Socket()
    opened = await asyncio.gather(*[rig.open(socket, numbers=7) for _ in range(10)])
    assert sorted(one.first for one in opened) == list(range(0, 70, 7))


@pytest.mark.slow
async def test_another_name_for_the_same_keys_goes_on_counting(store, path):
    rig = KeeperRig(store, path)
    await rig.open(Socket())
    write(path, {**ONE, "user": "other"})
    rig.now_ms += LOOK_INTERVAL_MS
    opened = await rig.open(Socket())
    assert (opened.principal.name, opened.first, opened.unused) == ("other", 10, False)


async def test_other_keys_begin_anew(store, path):
    rig = KeeperRig(store, path)
    before = await rig.open(Socket())
    write(path, {**ONE, "secret": "22" * 16})
    rig.now_ms += LOOK_INTERVAL_MS
    opened = await rig.open(Socket())
    assert (opened.first, opened.unused) == (0, True)
    assert opened.name != before.name


async def test_a_socket_takes_note_before_another_uses_its_context(store, path):
    rig, one, other = KeeperRig(store, path), Socket(), Socket()
    name = (await rig.open(one)).name
    lost = asyncio.create_task(rig.keeper.next_lost(one, NextLostContexts()))
    await asyncio.sleep(0)
    opening = asyncio.create_task(rig.open(other))
    assert await lost == [name]
    await asyncio.sleep(0.01)
    assert not opening.done(), "the first socket has not said yet that it uses it no more"
    waiting = asyncio.create_task(rig.keeper.next_lost(one, NextLostContexts()))
    assert (await opening).taken
    rig.keeper.stop()
    with pytest.raises(Refusal):
        await waiting


async def test_a_message_that_may_be_a_replay_takes_a_context_from_no_socket(store, path):
    rig, one, other = KeeperRig(store, path), Socket(), Socket()
    mine = await rig.open(one, proven=False)
    assert (mine.taken, mine.unused, mine.elsewhere) == (True, True, False)
    proof = await rig.open(other, proven=False)
    assert (proof.first, proof.taken, proof.elsewhere) == (10, False, True)
    more = await rig.open(one, proven=False)
    assert (more.first, more.taken, more.elsewhere) == (20, False, False), "it goes on, with numbers of its own"
    one.gone = True
    assert (await rig.open(other, proven=False)).taken


async def test_a_message_that_may_be_a_replay_takes_a_context_from_no_living_process(store, path):
    clock = Clock()
    proxies = [await Proxy(store, clock, seed=seed, takeover_s=60.0).start() for seed in (1, 2)]
    try:
        one, other = (KeeperRig(store, path, proxy.owners) for proxy in proxies)
        socket = Socket()
        name = (await one.open(socket, proven=False)).name
        lost = asyncio.create_task(one.keeper.next_lost(socket, NextLostContexts()))
        both = await asyncio.gather(other.open(Socket(), proven=False), one.open(socket, proven=False))
        assert [found.elsewhere for found in both] == [True, False]
        assert {found.first for found in both} == {10, 20}
        assert not lost.done()
        taking = asyncio.create_task(other.open(Socket()))
        assert await lost == [name]
        lost = asyncio.create_task(one.keeper.next_lost(socket, NextLostContexts()))
        opened = await taking
        assert (opened.first, opened.taken, opened.elsewhere) == (30, True, False)
        one.keeper.stop()
        with pytest.raises(Refusal):
            await lost
    finally:
        for proxy in proxies:
            await proxy.die()


async def test_a_socket_that_does_not_ask_does_not_hold_a_context_for_ever(store, path, monkeypatch):
    monkeypatch.setattr("gateway.oscore.keeper.RELEASE_WAIT_S", 0.02)
    rig, one = KeeperRig(store, path), Socket()
    name = (await rig.open(one)).name
    assert (await rig.open(Socket())).taken
    assert await rig.keeper.next_lost(one, NextLostContexts()) == [name]


async def test_a_fenced_process_gives_its_contexts_up(store, path):
    rig, socket = KeeperRig(store, path), Socket()
    name = (await rig.open(socket)).name
    await rig.keeper.on_fenced()
    assert await rig.keeper.next_lost(socket, NextLostContexts()) == [name]
    assert (await rig.open(socket)).taken


async def test_what_is_not_provisioned_is_refused(store, path):
    rig = KeeperRig(store, path)
    for kid, id_context in ((b"\x03", None), (b"\x02", None), (b"\x01", b"\xaa")):
        with pytest.raises(Refusal) as refused:
            await rig.open(Socket(), kid=kid, id_context=id_context)
        assert refused.value.cause is Cause.UNAUTHENTICATED
    assert (await rig.open(Socket(), kid=b"\x02", id_context=b"\xaa")).principal.name == "dev2"
    path.unlink()
    rig.now_ms += LOOK_INTERVAL_MS
    with pytest.raises(Refusal):
        await rig.open(Socket())


async def test_keys_are_found_without_taking_a_context_from_its_socket(store, path):
    rig, socket = KeeperRig(store, path), Socket()
    opened = await rig.open(socket)
    assert await rig.keeper.find_keys(FindKeys(kid=b"\x01", id_context=None)) == opened.keys
    assert not (await rig.open(socket)).taken
    with pytest.raises(Refusal) as refused:
        await rig.keeper.find_keys(FindKeys(kid=b"\x03", id_context=None))
    assert refused.value.cause is Cause.UNAUTHENTICATED


@pytest.mark.slow
async def test_a_file_with_a_mistake_changes_nothing(store, path):
    rig = KeeperRig(store, path)
    await rig.open(Socket())
    path.write_text("{")
    rig.now_ms += LOOK_INTERVAL_MS
    assert (await rig.open(Socket())).principal.name == "dev1"


@pytest.mark.slow
async def test_a_context_that_is_used_up_is_refused(store, path):
    rig = KeeperRig(store, path)
    name = (await rig.open(Socket())).name
    await store.keys.put(f"oscore/{name}", b"%d" % ((1 << 40) - 5))
    with pytest.raises(Refusal, match="used up"):
        await rig.open(Socket())


# ---- the file


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"secret": "00" * 15}, r"contexts\[0\].secret: must have at least 16 bytes"),
        ({"client_id": "00" * 8}, r"contexts\[0\].client_id: must have at most 7 bytes"),
        ({"server_id": "01"}, r"contexts\[0\].server_id: must not be the client's"),
        ({"algorithm": 99}, r"contexts\[0\].algorithm"),
        ({"user": "a\0b"}, r"contexts\[0\].user"),
        ({"secret": "xy" * 16}, "secret"),
        ({"more": 1}, "more"),
    ],
)
def test_a_mistake_in_the_file_is_named(path, changed, said):
    write(path, {**ONE, **changed})
    with pytest.raises(ConfigError, match=said) as raised:
        read_contexts(path)
    assert "0000" not in str(raised.value), "no secret is shown"


def test_two_contexts_of_one_kid_are_refused(path):
    write(path, ONE, {**ONE, "user": "other", "secret": "33" * 16})
    with pytest.raises(ConfigError, match=r"contexts\[1\].client_id"):
        read_contexts(path)


@pytest.mark.slow
def test_commands_add_list_and_remove(tmp_path):
    path, run = tmp_path / "oscore.json", CliRunner()
    file = ["--file", str(path)]
    made = run.invoke(app, ["coap", "oscore", "add", "dev1", *file])
    assert made.exit_code == 0, made.output
    shown = dict(line.split(" = ") for line in made.output.splitlines())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (context,) = read_contexts(path)
    assert (context.user, context.client_id, context.secret) == ("dev1", shown["client_id"], shown["secret"])
    more = ["--client-id", "0A", "--server-id", "0b", "--context", "", "--salt", ""]
    assert run.invoke(app, ["coap", "oscore", "add", "dev2", *more, *file]).exit_code == 0
    again = run.invoke(app, ["coap", "oscore", "add", "dev3", *more, *file])
    assert isinstance(again.exception, ConfigError)
    listed = run.invoke(app, ["coap", "oscore", "list", *file]).output
    assert listed == f"{context.client_id} dev1\n0a in context (empty) dev2\n"
    assert run.invoke(app, ["coap", "oscore", "remove", "0A", "--context", "", *file]).exit_code == 0
    assert isinstance(run.invoke(app, ["coap", "oscore", "remove", "0a", *file]).exception, ConfigError)
    assert [one.user for one in read_contexts(path)] == ["dev1"]
