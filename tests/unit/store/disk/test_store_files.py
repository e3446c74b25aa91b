"""The file layer and the lock."""

import errno
import os

import pytest

from store.base.errors import DataDirLocked
from store.disk.files import OsFiles, said_of_data_dir
from store.disk.lock import DataDirLock


def test_files(tmp_path):
    files = OsFiles()
    directory = tmp_path / "a" / "b"
    files.make_directory(directory)
    files.make_directory(directory)
    file = files.open(directory / "one", create=True)
    assert file.pwritev([b"ab", memoryview(b"cd")], 3) == 4
    file.sync()
    assert file.size() == 7
    assert file.pread(100, 0) == b"\0\0\0abcd"
    assert file.pread(100, 7) == b""
    file.truncate(4)
    assert file.pread(2, 3) == b"a"
    file.close()
    with pytest.raises(FileExistsError):
        files.open(directory / "one", create=True)
    with pytest.raises(FileNotFoundError):
        files.open(directory / "two")
    files.rename(directory / "one", directory / "two")
    files.sync_directory(directory)
    assert list(files.names(directory)) == ["two"]
    files.unlink(directory / "two")
    assert not files.names(directory)


def test_one_process_a_directory(tmp_path):
    lock = DataDirLock(tmp_path)
    with pytest.raises(DataDirLocked, match="in use by process"):
        DataDirLock(tmp_path)
    lock.release()
    lock.release()
    DataDirLock(tmp_path).release()


def test_a_full_disk_does_not_keep_a_process_from_its_directory(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("store.disk.lock.os.pwrite", full)
    lock = DataDirLock(tmp_path)
    with pytest.raises(DataDirLocked, match="in use by process unknown"):
        DataDirLock(tmp_path)
    lock.release()


def test_a_data_directory_that_cannot_be_made_is_said_and_what_to_do(tmp_path):
    (tmp_path / "file").touch()
    said = r"the data directory cannot be made or written .*; write another data_dir"
    for path, kind in ((tmp_path / "file", FileExistsError), (tmp_path / "file" / "below", NotADirectoryError)):
        with pytest.raises(kind, match=said), said_of_data_dir(path):
            OsFiles().make_directory(path)
    with pytest.raises(OSError, match=r"No space left on device$"), said_of_data_dir(tmp_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
