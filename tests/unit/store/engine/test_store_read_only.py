"""A data directory that cannot be written is verified, looked into, and refused where a store is seen to run on it."""

import asyncio
import errno
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import app
from store.api.message import Message, encode
from store.base.errors import DataDirLocked
from store.disk.lock import DataDirLock
from store.engine.repair import StoppedStore
from store.format.frame import ROW, UnplacedFrame
from store.local.local import LocalStore
from tests.support.store.store_kit import append

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@pytest.fixture
def data_dir(tmp_path):
    record = encode(Message("t/1", b"body", qos=0))

    async def fill():
        async with await LocalStore.open(tmp_path / "data") as store:
            await append(store, UnplacedFrame.build(ROW.pack(16, 0, len(record), 0, 0, 0, 0, 0), record))

    asyncio.run(fill())
    return tmp_path / "data"


@pytest.fixture(params=[errno.EROFS, errno.EACCES])
def read_only(request, data_dir, monkeypatch):
    """Makes the data directory one in which nothing can be opened to be written."""
    real = os.open

    def opened(path, flags, *args, **kwargs):
        if flags & WRITING and str(path).startswith(str(data_dir)):
            raise OSError(request.param, os.strerror(request.param), str(path))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", opened)
    return data_dir


def run(*args):
    return CliRunner().invoke(app, ["store", *map(str, args)])


@pytest.mark.parametrize("lock_is_there", [True, False])
def test_it_is_verified_and_said_to_be_without_its_lock(read_only, lock_is_there):
    if not lock_is_there:
        (read_only / "LOCK").unlink()
    before = sorted(read_only.rglob("*"))
    verified = run("verify", read_only, "--views")
    assert verified.exit_code == 0, verified.output
    assert "1 frames with 1 records" in verified.stdout
    assert "as a rebuild makes them" in verified.stdout
    assert "read without its lock" in verified.stderr
    for command in ("dump", "stats"):
        looked = run(command, read_only)
        assert looked.exit_code == 0, looked.output
        assert "read without its lock" in looked.stderr
    assert sorted(read_only.rglob("*")) == before
    assert isinstance(run("rebuild-views", read_only).exception, OSError), "which changes something"


def test_a_store_that_is_seen_to_run_is_refused(read_only):
    program = (
        "import sys; from pathlib import Path; from store.disk.lock import DataDirLock;"
        "held = DataDirLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    held = [sys.executable, "-c", program, str(read_only)]
    with subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as store:
        assert store.stdout.readline() == b"held\n"
        refused = run("verify", read_only).exception
        assert isinstance(refused, DataDirLocked)
        assert f"is in use by process {store.pid}" in str(refused)
        store.stdin.close()
    assert run("verify", read_only).exit_code == 0


def test_who_reads_keeps_stores_away(read_only, monkeypatch):
    with StoppedStore(read_only, read=True) as store:
        assert store.unlocked
        monkeypatch.undo()
        with pytest.raises(DataDirLocked):
            DataDirLock(read_only)
    DataDirLock(read_only).release()
