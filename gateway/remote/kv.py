"""The keys and values of a running gateway, over its HTTP port, for `headgate kv`."""

import time
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from gateway.remote.http import RemoteGateway, RemoteRefused
from store.api.keys import Change, Entry, Page
from store.api.kv_export import Exported, ExportWriter, Imported, batches, exporting, read_export
from store.base.process_errors import HeadgateError

PAGE_COUNT = 1_000
LARGE_BYTES = 1 << 20  # a value over this is stored by a request of its own
T = TypeVar("T")
NOT_FOUND = 404


class Watched(NamedTuple):
    """A change, and whether it is the last of its revision: then a watch can begin behind it."""

    change: Change
    last: bool


class _Entry(msgspec.Struct):
    key: str
    revision: int
    create_revision: int
    version: int
    expires_at_ms: int | None = None
    value_base64: str = ""


class _Page(msgspec.Struct):
    revision: int
    entries: list[_Entry]
    more: bool


class _Stored(msgspec.Struct):
    revision: int


class _Count(msgspec.Struct):
    count: int


class _Problem(msgspec.Struct):
    status: int = 0
    detail: str = ""


class _Changed(msgspec.Struct):
    key: str
    revision: int
    value_base64: str = ""
    expires_at_ms: int | None = None


class GatewayKeys:
    """One namespace. Methods raise `Unreachable` and `RemoteRefused`."""

    def __init__(self, gateway: RemoteGateway, namespace: str) -> None:
        self._gateway = gateway
        self._namespace = namespace

    def get(self, key: str) -> Entry:
        """Returns one entry; a key that is not there is refused with 404."""
        got = self._gateway.ask("GET", self._key(key))
        said = got.headers
        try:
            expires = int(said["x-expires-at-ms"]) if "x-expires-at-ms" in said else None
            numbers = int(said["etag"].strip('"')), int(said["x-create-revision"]), int(said["x-version"])
        except (KeyError, ValueError) as error:
            raise self._strange(got.status_code) from error
        return Entry(key, got.content, *numbers, expires, self._namespace)

    def put(self, key: str, value: bytes, *, ttl_s: float | None = None, if_revision: int | None = None) -> int:
        """Stores a value, if the key is at a revision (0: not there); returns its new revision."""
        query = {} if ttl_s is None else {"ttl": f"{ttl_s:.3f}"}
        got = self._gateway.ask("PUT", self._key(key, query), body=value, headers=_condition(if_revision))
        return self._read(got.status_code, got.content, _Stored).revision

    def delete(self, key: str, *, if_revision: int | None = None) -> bool:
        """Removes a key; returns whether it was there."""
        try:
            self._gateway.ask("DELETE", self._key(key), headers=_condition(if_revision))
        except RemoteRefused as refused:
            if refused.status == NOT_FOUND:
                return False
            raise
        return True

    def page(self, *, values: bool = True, **query: str | int) -> Page:
        """Returns a page of keys; `query` is that of `GET /kv`."""
        asked = {name: str(text) for name, text in query.items()}
        if not values:
            asked["keys"] = "true"
        got = self._gateway.ask("GET", self._range(asked))
        found = self._read(got.status_code, got.content, _Page)
        return Page([self._entry(one) for one in found.entries], found.revision, found.more)

    def entries(self, *, values: bool = True, **query: str | int) -> Iterator[Entry]:
        """Yields all entries of a range, by page; each page is newer than the one before, but for a `revision`."""
        more = True
        while more:
            page = self.page(values=values, limit=PAGE_COUNT, **query)
            yield from page.entries
            more = page.more
            if more:
                query["after"] = page.entries[-1].key

    def count(self, **query: str) -> int:
        """Returns how many keys a range has."""
        got = self._gateway.ask("GET", self._range({**query, "count": "true"}))
        return self._read(got.status_code, got.content, _Count).count

    def watch(self, *, from_revision: int | None = None, **query: str) -> Iterator[Watched]:
        """Changes as they come, from now or a revision on."""
        if from_revision is not None:
            query["from"] = str(from_revision)
        for event in self._gateway.events(self._range({**query, "watch": "true"})):
            if event.type == "error":
                said = self._read(200, event.data.encode(), _Problem)
                raise RemoteRefused(said.status, f"{said.status}: {said.detail}")
            found = self._read(200, event.data.encode(), _Changed)
            change = Change(event.type, found.key, b64decode(found.value_base64), found.revision, found.expires_at_ms)
            yield Watched(change, event.id == str(found.revision))

    @contextmanager
    def held(self) -> Iterator[int]:
        """Holds the state as it is now, to be read by `revision` in this context."""
        got = self._gateway.ask("POST", "/kv-holds")
        revision = self._read(got.status_code, got.content, _Stored).revision
        try:
            yield revision
        finally:
            with suppress(HeadgateError):  # it ends with the connection, too
                self._gateway.ask("DELETE", f"/kv-holds?revision={revision}")

    # ---- files

    def export_to(self, path: Path) -> Exported:
        """Writes all entries, as they are at one revision, to a file. Raises OSError."""
        now_ms = time.time_ns() // 1_000_000
        with self.held() as revision, exporting(path) as file:
            writer = ExportWriter(file, revision=revision, now_ms=now_ms)
            writer.add(self.entries(revision=revision))
            writer.finish()
        return Exported(revision, now_ms, writer.entries)

    def import_from(self, path: Path) -> Imported:
        """Stores the entries of a file of one namespace here. Raises `DamagedExport`, OSError, `HeadgateError`.

        As `store.api.kv_export.import_from` does: the file is checked first, and entries that are here already are
        skipped.
        """
        stored = unchanged = expired = 0
        now_ms = time.time_ns() // 1_000_000
        with path.open("rb") as file:
            names = {one.namespace for block in read_export(file) if not isinstance(block, Exported) for one in block}
            if len(names) > 1:
                raise HeadgateError(f"{path} holds {len(names)} namespaces: a file of one is needed")
            for block in read_export(file):
                if isinstance(block, Exported):
                    continue
                for batch in batches(block):
                    wanted = [one for one in batch if one.expires_at_ms is None or one.expires_at_ms > now_ms]
                    here = self._like(wanted)
                    changed = [one for one in wanted if here.get(one.key) != (one.value, one.expires_at_ms)]
                    self._store(changed, now_ms)
                    expired += len(batch) - len(wanted)
                    unchanged += len(wanted) - len(changed)
                    stored += len(changed)
        return Imported(stored, unchanged, expired)

    def _like(self, wanted: Sequence[Entry]) -> dict[str, tuple[bytes, int | None]]:
        """Returns the stored values of a batch's keys, which are in order: one page of their range covers most."""
        if not wanted:
            return {}
        page = self.page(start=wanted[0].key, end=wanted[-1].key + "\0", limit=PAGE_COUNT)
        return {one.key: (one.value, one.expires_at_ms) for one in page.entries}

    def _store(self, entries: Sequence[Entry], now_ms: int) -> None:
        if not entries:
            return
        if len(entries) == 1 and len(entries[0].value) > LARGE_BYTES:
            one = entries[0]
            ttl_s = None if one.expires_at_ms is None else (one.expires_at_ms - now_ms) / 1000
            self.put(one.key, one.value, ttl_s=ttl_s)
            return
        operations = []
        for one in entries:
            put: dict[str, Any] = {"put": one.key, "value_base64": b64encode(one.value).decode()}
            if one.expires_at_ms is not None:
                put["expires_at_ms"] = one.expires_at_ms
            operations.append(put)
        body = msgspec.json.encode({"operations": operations})
        self._gateway.ask("POST", self._range({}), body=body, headers={"content-type": "application/json"})

    # ---- inside

    def _key(self, key: str, query: Mapping[str, str] | None = None) -> str:
        return f"/kv/{quote(key, safe='/')}?{urlencode({'ns': self._namespace, **(query or {})}, quote_via=quote)}"

    def _range(self, query: Mapping[str, str]) -> str:
        return f"/kv?{urlencode({'ns': self._namespace, **query}, quote_via=quote)}"

    def _entry(self, one: _Entry) -> Entry:
        return Entry(
            one.key,
            b64decode(one.value_base64),
            one.revision,
            one.create_revision,
            one.version,
            one.expires_at_ms,
            self._namespace,
        )

    def _read(self, status: int, content: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.DecodeError as error:
            raise self._strange(status) from error

    def _strange(self, status: int) -> RemoteRefused:
        return RemoteRefused(status, f"{self._gateway.url} does not answer as a gateway does")


def _condition(if_revision: int | None) -> dict[str, str]:
    """Returns the headers for a compare-and-set."""
    if if_revision is None:
        return {}
    return {"if-match": f'"{if_revision}"'} if if_revision else {"if-none-match": "*"}
