"""The file layer and the lock."""

import pytest

from store.base.errors import DataDirLocked
from store.disk.files import OsFiles
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
