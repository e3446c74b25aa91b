"""`headgate store`: exit codes, what is printed, JSON, and one line where a gateway runs."""

import asyncio
import json

import msgspec
import pytest
from typer.testing import CliRunner

from gateway.cli.commands import app, main
from store.api.message import Message, encode
from store.format.frame import ROW, UnplacedFrame
from store.local.local import LocalStore
from tests.support.store.store_kit import append


def run(*args):
    return CliRunner().invoke(app, ["store", *map(str, args)])


def frame(*messages):
    records = [encode(message) for message in messages]
    rows, at = [], 0
    for record in records:
        rows.append(ROW.pack(16, at, len(record), 0, 0, 0, 0, 0))
        at += len(record)
    return UnplacedFrame.build(b"".join(rows), b"".join(records))


@pytest.fixture
def data_dir(tmp_path):
    async def fill():
        async with await LocalStore.open(tmp_path) as store:
            for n in range(5):
                await append(store, frame(Message("t/1", b"body %d" % n, qos=0), Message("t/2", b"\xff", type="x")))
            await store.keys.put("key", b"value")
            await append(store, UnplacedFrame.build(ROW.pack(17, 0, 4, 0, 0, 0, 0, 0), b"junk"))

    asyncio.run(fill())
    return tmp_path


def damage(directory):
    (path,) = (directory / "log").iterdir()
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)


def test_verify_says_what_is_sound(data_dir):
    result = run("verify", data_dir, "--views")
    assert result.exit_code == 0, result.output
    assert "7 frames with 12 records" in result.output
    assert "as a rebuild makes them" in result.output
    document = json.loads(run("verify", data_dir, "--json").stdout)
    assert (document["sound"], document["frames"], document["damages"], document["torn"]) == (True, 7, [], None)
    assert "views" not in document
    assert json.loads(run("verify", data_dir, "--views", "--json").stdout)["views"]["different"] == {}


def test_verify_ends_with_1_where_something_is_damaged(data_dir):
    damage(data_dir)
    result = run("verify", data_dir)
    assert result.exit_code == 1
    assert "DAMAGED 00000000000000000000.log" in result.output
    assert "at log offset 0: body checksum" in result.output
    result = run("verify", data_dir, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert not document["sound"]
    assert document["damages"][0]["start"] == 0


def test_a_torn_tail_is_told(data_dir):
    (path,) = (data_dir / "log").iterdir()
    with path.open("ab") as file:
        file.write(bytes(99))
    result = run("verify", data_dir)
    assert result.exit_code == 0
    assert "99 bytes at the end" in result.output


def test_dump_prints_every_record(data_dir):
    result = run("dump", data_dir)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert len(lines) == 12
    assert lines[0].startswith("0.0 offset=0 ")
    assert "queue=16" in lines[0]
    assert "address='t/1'" in lines[0]
    assert "body=b'body 0'" in lines[0]
    assert any("kind='KvPut'" in line and "'key'" in line for line in lines)
    assert lines[-1].endswith("kind='unknown' bytes=4")
    assert len(run("dump", data_dir, "--queue", "17").output.splitlines()) == 1
    assert len(run("dump", data_dir, "-n", "3").output.splitlines()) == 3


def test_dump_in_json_and_between_offsets(data_dir):
    lines = [json.loads(line) for line in run("dump", data_dir, "--json").stdout.splitlines()]
    assert [line["kind"] for line in lines].count("message") == 10
    assert msgspec.json.decode(json.dumps(lines[1]["body"]), type=bytes) == b"\xff"
    second = lines[2]["offset"]
    part = run("dump", data_dir, "--json", "--from", second, "--to", lines[4]["offset"]).stdout.splitlines()
    assert [json.loads(line)["position"] for line in part] == [f"{second:x}.0", f"{second:x}.1"]


def test_dump_begins_with_the_frame_that_an_offset_is_in(data_dir):
    lines = [json.loads(line) for line in run("dump", data_dir, "--json").stdout.splitlines()]
    second = next(line["offset"] for line in lines if line["offset"] != lines[0]["offset"])
    found = run("dump", data_dir, "--json", "--from", second + 1)
    assert [json.loads(line) for line in found.stdout.splitlines()] == [one for one in lines if one["offset"] >= second]
    assert found.exit_code == 0


def test_dump_ends_with_the_frame_that_an_offset_is_in(data_dir):
    lines = [json.loads(line) for line in run("dump", data_dir, "--json").stdout.splitlines()]
    second = next(line["offset"] for line in lines if line["offset"] != lines[0]["offset"])
    found = run("dump", data_dir, "--json", "--to", second + 1)
    assert [json.loads(line) for line in found.stdout.splitlines()] == [one for one in lines if one["offset"] <= second]
    assert found.exit_code == 0


def test_dump_goes_on_behind_damage(data_dir):
    damage(data_dir)
    result = run("dump", data_dir)
    assert result.exit_code == 1
    assert result.output.startswith("DAMAGED damaged=0 ")
    assert len(result.output.splitlines()) == 11


def test_views_are_rebuilt(data_dir):
    result = run("rebuild-views", data_dir)
    assert result.exit_code == 0
    assert "the views have followed the log to" in result.output
    assert json.loads(run("rebuild-views", data_dir, "--json").stdout)["dispatched"] > 0
    assert run("verify", data_dir, "--views").exit_code == 0


def test_stats(data_dir):
    result = run("stats", data_dir)
    assert result.exit_code == 0
    assert "1 segments" in result.output
    assert "up to date" in result.output
    assert "queues" in result.output
    document = json.loads(run("stats", data_dir, "--json").stdout)
    assert document["end"] == document["dispatched"] == document["log_bytes"]
    (data_dir / "views" / "data.mdb").unlink()
    assert "bytes behind the log" in run("stats", data_dir).output


@pytest.mark.parametrize("command", ["verify", "dump", "rebuild-views", "stats"])
def test_one_line_where_there_is_nothing_or_a_store_runs(data_dir, tmp_path_factory, command, monkeypatch, capsys):
    def said(directory):
        monkeypatch.setattr("sys.argv", ["headgate", "store", command, str(directory)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    empty = tmp_path_factory.mktemp("empty")
    assert said(empty).startswith(f"headgate: {empty} holds no store")

    async def running():
        async with await LocalStore.open(data_dir):
            return said(data_dir)

    assert asyncio.run(running()).startswith(f"headgate: {data_dir} is in use by process")


def test_verify_fails_where_the_views_cannot_be_compared(data_dir):
    path = data_dir / "views" / "data.mdb"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    kept = path.read_bytes()
    result = run("verify", data_dir, "--views")
    assert result.exit_code == 1
    assert "NOT COMPARED: the views cannot be read" in result.output
    document = json.loads(run("verify", data_dir, "--views", "--json").stdout)
    assert (document["sound"], document["views"]["problem"]) == (False, "the views cannot be read")
    assert path.read_bytes() == kept
