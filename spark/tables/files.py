"""The place of tables: a local directory, or a bucket of an S3-compatible store; files there are whole or not there.

On a local disk a file is written under another name, synced and renamed; an object store shows an object when it is
whole.
"""

import errno
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from spark.errors import BadOption, DiskFull, SparkError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_SCHEMES = ("s3", "s3a")
LAST_CHECKPOINT: Final = "_last_checkpoint"  # names the newest checkpoint of a table's log
CHECKPOINT_NAMES: Final = ("{:020d}.checkpoint.parquet", LAST_CHECKPOINT)


class Location(NamedTuple):
    """A directory by path or URL, with the object store's settings (`AWS_ENDPOINT_URL` and the like). Picklable."""

    url: str
    options: Mapping[str, str] = {}

    @classmethod
    def of(cls, where: str | Path, options: Mapping[str, str] | None = None) -> "Location":
        """Returns the place of a path or an `s3://` URL. Raises `BadOption` for any other URL."""
        text = str(where)
        scheme, _, rest = text.partition("://")
        if not rest:
            return cls(str(Path(text).absolute()), {})
        if scheme not in _SCHEMES:
            raise BadOption("output", f"cannot be {text}: a path of this machine, or s3://bucket/path")
        return cls(f"s3://{rest.rstrip('/')}", dict(options or {}))

    @property
    def local(self) -> Path | None:
        """The directory, when it is one of this machine."""
        return None if "://" in self.url else Path(self.url)

    def child(self, name: str) -> str:
        """Returns the URL of something in it."""
        return f"{self.url}/{name}"

    def make(self) -> None:
        """Makes the directory."""
        if self.local is not None:
            self.local.mkdir(parents=True, exist_ok=True)

    def files(self, directory: str) -> dict[str, int]:
        """Returns the names in one of its directories, if it is there, and when each was written, in ms since 1970."""
        filesystem, base = self._filesystem()
        selector = fs.FileSelector(f"{base}/{directory}", allow_not_found=True)
        return {info.base_name: (info.mtime_ns or 0) // 1_000_000 for info in filesystem.get_file_info(selector)}

    def exists(self, name: str) -> bool:
        """Returns whether there is a file or directory of that name."""
        filesystem, base = self._filesystem()
        return bool(filesystem.get_file_info(f"{base}/{name}").type != fs.FileType.NotFound)

    def read(self, name: str) -> bytes | None:
        """Returns a file's bytes; None when there is none."""
        filesystem, base = self._filesystem()
        try:
            with filesystem.open_input_file(f"{base}/{name}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def open(self, name: str) -> pa.NativeFile:
        """Returns a file, to be read. Raises `FileNotFoundError`."""
        filesystem, base = self._filesystem()
        return filesystem.open_input_file(f"{base}/{name}")

    @contextmanager
    def writing(self, name: str) -> Iterator[pa.NativeFile]:
        """Opens a file to be written, which is there, whole and durable, once this is left without an error.

        Raises `SparkError` for a local file that cannot be written.
        """
        filesystem, base = self._filesystem()
        path = f"{base}/{name}"
        if self.local is None:
            with filesystem.open_output_stream(path) as file:
                yield file
            return
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with filesystem.open_output_stream(str(partial)) as file:
                yield file
            sync(partial)
            partial.replace(target)
            sync(target.parent)
        except OSError as error:
            partial.unlink(missing_ok=True)
            if error.errno in _FULL:
                raise DiskFull(self.url) from error
            raise SparkError(
                f"{target} cannot be written: {reason(error)}. Mend that and start the job again: it goes on with the "
                "batch it had, and nothing is lost"
            ) from error
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def write(self, name: str, data: bytes) -> None:
        """Replaces a file by one of these bytes."""
        with self.writing(name) as file:
            file.write(data)

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        filesystem, base = self._filesystem()
        try:
            filesystem.delete_file(f"{base}/{name}")
        except FileNotFoundError:
            return

    def size(self, name: str) -> int:
        """Returns a file's bytes. Raises `FileNotFoundError`."""
        filesystem, base = self._filesystem()
        info = filesystem.get_file_info(f"{base}/{name}")
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(self.child(name))
        return int(info.size)

    def sync_log(self, table: str, version: int) -> None:
        """Makes a commit of a local table durable: its checkpoint too, where it has made one; of a new table all."""
        if self.local is not None:
            log = self.local / table / "_delta_log"
            made = [path for name in CHECKPOINT_NAMES if (path := log / name.format(version)).exists()]
            begun = () if version else (log.parent, self.local)
            try:
                for path in (log / f"{version:020d}.json", *made, log, *begun):
                    sync(path)
            except OSError as error:
                raise DiskFull(self.url) if error.errno in _FULL else error from error

    def _filesystem(self) -> tuple[Any, str]:
        if self.local is not None:
            return fs.LocalFileSystem(), self.url
        parts = urlsplit(self.url)
        return _s3(tuple(sorted(self.options.items()))), f"{parts.netloc}{parts.path}"


@lru_cache(maxsize=8)
def _s3(options: tuple[tuple[str, str], ...]) -> Any:
    """Returns the client of an object store, made once a process."""
    given = {name.upper(): value for name, value in options}
    endpoint = given.get("AWS_ENDPOINT_URL", "")
    settings: dict[str, Any] = {
        "access_key": given.get("AWS_ACCESS_KEY_ID"),
        "secret_key": given.get("AWS_SECRET_ACCESS_KEY"),
        "session_token": given.get("AWS_SESSION_TOKEN"),
        "region": given.get("AWS_REGION"),
    }
    if endpoint:
        settings |= {"endpoint_override": urlsplit(endpoint).netloc, "scheme": urlsplit(endpoint).scheme}
    return fs.S3FileSystem(**{k: v for k, v in settings.items() if v})


def reason(error: Exception) -> str:
    """Returns why something failed, in a line.

    Arrow's own text names files and repeats the system's words; that of deltalake has colors, arrows and a line for
    each of its layers.
    """
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    lines = (line.strip(" ↳") for line in _COLOR.sub("", str(error)).splitlines())
    return ": ".join(line for line in lines if line)


def sync(path: Path) -> None:
    """Makes a file or a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def now_ms() -> int:
    """Returns the time of this machine, in ms since 1970."""
    return time.time_ns() // 1_000_000
