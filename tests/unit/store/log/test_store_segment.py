"""A segment's parts reach its file."""

import errno
import os
import random

import pytest

from store.disk.files import OsFiles
from store.log import segment as segment_module
from store.log.segment import Segment
from tests.support.store.store_kit import FaultyFiles


class Counted(FaultyFiles):
    """Says how large the writes were that it was asked for."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def open(self, path, *, create=False):
        file = super().open(path, create=create)
        whole = file.pwritev

        def pwritev(parts, offset):
            self.asked.append(sum(map(len, parts)))
            return whole(parts, offset)

        file.pwritev = pwritev
        return file


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("short", [1 << 30, 700])
def test_large_groups_are_written_in_pieces(tmp_path, monkeypatch, seed, short):
    chance = random.Random(seed)
    monkeypatch.setattr(segment_module, "_WRITE_BYTES", 1_000)
    monkeypatch.setattr(segment_module, "_IOV_MAX", 5)
    files, written = Counted(), b""
    files.write_bytes_max = short
    segment = Segment(files, tmp_path / "one", 0, create=True)
    for _ in range(20):
        parts = [
            chance.randbytes(chance.choice([0, 1, 64, 999, 1_000, 1_001, 5_500])) for _ in range(chance.randrange(9))
        ]
        segment.write(parts)
        written += b"".join(parts)
        assert segment.size_bytes == len(written)
    assert segment.read(0, 1 << 20) == written
    assert 0 < max(files.asked) <= 1_000
    segment.close()


class LinuxFiles(OsFiles):
    """Reports the error of writing pages back as Linux does: once to each open file."""

    def __init__(self):
        self._open = []  # files, with their errors that no sync has reported yet

    def open(self, path, *, create=False):
        file = super().open(path, create=create)
        return self._File(file, self._open)

    def fail_write_back(self):
        for one in self._open:
            one.error = errno.EIO

    class _File:
        def __init__(self, inner, among):
            self._inner, self.error = inner, 0
            among.append(self)

        def sync(self):
            self._inner.sync()
            error, self.error = self.error, 0
            if error:
                raise OSError(error, os.strerror(error))

        def __getattr__(self, name):
            return getattr(self._inner, name)


def test_a_repair_leaves_the_error_of_unsynced_frames_to_the_writer(tmp_path):
    files = LinuxFiles()
    segment = Segment(files, tmp_path / "one", 0, create=True)
    segment.write([b"damaged."])
    segment.sync()
    segment.write([b"new"])
    files.fail_write_back()
    segment.mend(0, [b"repaired"], sealed=False)
    assert segment.read(0, 20) == b"repairednew"
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        segment.sync()
    segment.close()
