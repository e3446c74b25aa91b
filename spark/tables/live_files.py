"""The data files that a table consists of, by the bucket that wrote them: names and sizes, no row."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from spark.tables.data_files import OPEN, SETTLED, bucket_of, is_full, kind_of, pass_of
from spark.tables.reports import NewFile

MERGE_FILES = 32  # small settled files of one bucket and day that are merged into one
_SMALL_BYTES = 32 << 20  # a larger file is left as it is, and a full one
_RUN_FILES = 128  # merged at once


class LiveFiles:
    """The files of one table as of its last commit."""

    def __init__(self) -> None:
        self._open: dict[int, set[str]] = {}
        self._settled: dict[tuple[int, str], dict[str, int]] = {}  # (bucket, folder) -> path -> bytes

    @classmethod
    def of(cls, table: Any) -> "LiveFiles":
        """Returns the files of an opened table."""
        files = cls()
        actions = pa.table(table.get_add_actions())
        for path, size in zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True):
            files._add(path, size)
        return files

    def opened(self, bucket: int) -> list[str]:
        """Returns the paths of a bucket's open files."""
        return sorted(self._open.get(bucket, ()))

    def of_pass(self, pass_: int) -> list[str]:
        """Returns the paths of settled files that a pass wrote for its own rows, without merged files."""
        paths = (path for files in self._settled.values() for path in files)
        return sorted(path for path in paths if pass_of(path) == pass_)

    def before(self, folder: str) -> list[str]:
        """Returns the paths of the settled files in folders of days before one, as `day=2026-01-31`."""
        of_days = (files for (_, day), files in self._settled.items() if day and day < folder)
        return sorted(path for files in of_days for path in files)

    def change(self, added: Iterable[NewFile], removed: Iterable[str]) -> None:
        """Follows a commit."""
        for path in removed:
            self._open.get(bucket_of(path), set()).discard(path)
            self._settled.get(_group(path), {}).pop(path, None)
        for file in added:
            self._add(file.path, file.size)

    def small(self, least: int) -> dict[int, list[list[str]]]:
        """Returns the runs of small settled files of one bucket and day, from `least` files on, by bucket."""
        found: dict[int, list[list[str]]] = {}
        for (bucket, _), files in sorted(self._settled.items()):
            if bucket < 0 or len(files) < least:
                continue
            some = sorted(path for path, size in files.items() if size < _SMALL_BYTES and not is_full(path))
            if len(some) >= least:
                found.setdefault(bucket, []).append(some[:_RUN_FILES])
        return found

    def _add(self, path: str, size: int) -> None:
        if kind_of(path) == OPEN:
            self._open.setdefault(bucket_of(path), set()).add(path)
        elif kind_of(path) == SETTLED:
            self._settled.setdefault(_group(path), {})[path] = size


def _group(path: str) -> tuple[int, str]:
    return bucket_of(path), path.rpartition("/")[0]
