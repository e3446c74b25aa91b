"""The disk that lies does what its tests rely on."""

import subprocess
import sys

import pytest

from tests.support.cluster.lying_disk import LyingDisk, Mode, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture
def disk(tmp_path):
    (tmp_path / "data").mkdir()
    disk = LyingDisk(tmp_path / "data", tmp_path / "shim")
    yield disk
    disk.close()


def run(disk, tmp_path, program):
    """Returns what a program prints that works on the file `x` of the disk, by the descriptor `fd`."""
    path = tmp_path / "data" / "x"
    begin = f"import os; fd = os.open({str(path)!r}, os.O_RDWR | os.O_CREAT); "
    done = subprocess.run(
        [*disk.under(), sys.executable, "-c", begin + program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_power_failure_takes_what_was_not_synced_and_nothing_else(disk, tmp_path):
    run(
        disk,
        tmp_path,
        "os.pwritev(fd, [b'abc', b'def'], 0); os.fdatasync(fd); os.pwritev(fd, [b'XY'], 1); os.pwrite(fd, b'ghi', 6);"
        "os.ftruncate(fd, 7)",
    )
    assert (tmp_path / "data" / "x").read_bytes() == b"aXYdefg"
    assert disk.lose_power() == 3
    assert (tmp_path / "data" / "x").read_bytes() == b"abcdef"


def test_a_sync_that_lies_syncs_nothing(disk, tmp_path):
    disk.lie(Mode.LIE_SYNC)
    run(disk, tmp_path, "os.pwrite(fd, b'abc', 0); os.fdatasync(fd)")
    disk.lose_power()
    assert (tmp_path / "data" / "x").read_bytes() == b""


@pytest.mark.parametrize(
    ("mode", "call"),
    [
        (Mode.EIO_READ, "os.pread(fd, 1, 0)"),
        (Mode.EIO_WRITE, "os.pwritev(fd, [b'a'], 0)"),
        (Mode.EIO_SYNC, "os.fdatasync(fd)"),
    ],
)
def test_calls_fail_as_they_are_told_to(disk, tmp_path, mode, call):
    program = f"exec('''try:\n    {call}\nexcept OSError as error:\n    print(error.errno)''')"
    disk.lie(mode, "elsewhere")
    assert run(disk, tmp_path, program) == ""
    disk.lie(mode, "/x")
    assert run(disk, tmp_path, program) == "5"
    assert disk.done == 1


def test_one_write_is_lost_or_misdirected(disk, tmp_path):
    disk.lie(Mode.LOSE_ONCE)
    run(disk, tmp_path, "os.pwrite(fd, b'a' * 64, 0); os.pwrite(fd, b'b' * 64, 64)")
    assert (tmp_path / "data" / "x").read_bytes() == bytes(64) + b"b" * 64
    disk.lie(Mode.MISDIRECT_ONCE)
    run(disk, tmp_path, "os.pwrite(fd, b'c' * 64, 0)")
    assert (tmp_path / "data" / "x").read_bytes()[4096:] == b"c" * 64
    assert disk.done == 2
