"""Header compression (RFC 7541) on the hpack library, with header blocks that are remembered.

A block stands for the same fields, and the fields for the same block, as long as the dynamic table is the same. So each
table counts its changes, and what was decoded or encoded without one is valid until the next.
"""

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from hpack import Decoder, Encoder, HeaderTuple
from hpack.exceptions import HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

from adapters.http.wire.limits import FIELDS_COUNT_MAX, HEADS_PASSED

Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]

BLOCKS_MAX: Final = 4  # remembered of each encoder
FIELDS_DECODED_MAX: Final = HEADS_PASSED * FIELDS_COUNT_MAX  # of a block; each may be one byte, and takes 4 us of h2
BLOCK_FIELDS_BYTES_MAX: Final = 4_000  # that fit into a frame, at 30 bits a character (RFC 7541, B)


class CompressionError(ProtocolError):
    """Raised for a header block that cannot be decoded (RFC 9113, 4.3)."""

    error_code = ErrorCodes.COMPRESSION_ERROR


class _Table(HeaderTable):
    """A table that counts how often it has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def add(self, name: bytes, value: bytes) -> None:
        """Adds an entry; a table without room for any stays as it is."""
        before = bool(self.dynamic_entries)
        super().add(name, value)
        self.changes += before or bool(self.dynamic_entries)

    @property
    def maxsize(self) -> int:
        """Returns how many bytes the entries may have (RFC 7541, 4.1)."""
        return self._maxsize

    @maxsize.setter
    def maxsize(self, size_bytes: int) -> None:
        """Resizes the table, which the next block has to say; the same size once more does not take that back."""
        resized = self.resized
        HeaderTable.maxsize.fset(self, size_bytes)  # type: ignore[attr-defined]
        self.resized = self.resized or resized
        self.changes += 1


class BlockDecoder(Decoder):
    """Raises `CompressionError`, which h2 passes on; of a header list that is too large, h2 answers by itself."""

    header_table: _Table

    def __init__(self, header_list_bytes_max: int) -> None:
        super().__init__(header_list_bytes_max)
        self.header_table = _Table()
        self._ahead: tuple[bytes, Iterable[HeaderTuple] | Exception] | None = None
        self.block = b""  # the one that was decoded last; empty where that has changed the table

    @property
    def changes(self) -> int:
        """Returns how often the table has changed."""
        return self.header_table.changes

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        """Decodes a header block, unless that was done `ahead`."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return self._decoded(data, raw)
        assert ahead[0] == data, "nothing comes between a request that is looked at and its frames"
        if isinstance(ahead[1], Exception):
            raise ahead[1]
        return ahead[1]

    def _decoded(self, data: bytes, raw: bool) -> Iterable[HeaderTuple]:
        table = self.header_table
        before = table.changes
        try:
            fields = list(super().decode(data, raw))
            if len(fields) > FIELDS_DECODED_MAX:
                raise OversizedHeaderListError(f"more than {FIELDS_DECODED_MAX} fields")
        except OversizedHeaderListError:
            raise
        except HPACKError as error:
            raise CompressionError(str(error)) from error
        self.block = data if table.changes == before else b""
        return fields

    def ahead(self, block: bytes) -> Iterable[HeaderTuple]:
        """Decodes the next block before h2 does, which gets the same from `decode`; nothing where it is at fault."""
        found: Iterable[HeaderTuple] | Exception
        try:
            found = self._decoded(block, True)
        except (CompressionError, OversizedHeaderListError) as error:
            found = error
        self._ahead = block, found
        return () if isinstance(found, Exception) else found

    def taken(self) -> None:
        """Notes that h2 does not get the block that was decoded ahead, if it was."""
        self._ahead = None


class BlockEncoder(Encoder):
    """Encodes each list of fields once for each state of the table."""

    header_table: _Table

    def __init__(self) -> None:
        super().__init__()
        self.header_table = _Table()
        self._blocks: dict[Fields, tuple[int, bytes]] = {}

    def encode(self, headers: Any, huffman: bool = True) -> bytes:
        """Encodes fields; other sizes of the table are said before them, the least and the last (RFC 7541, 4.2)."""
        if self.header_table.resized:
            sizes = self.table_size_changes
            self.table_size_changes = sorted({min(sizes), sizes[-1]}) if sizes else []
            self.header_table.changes += 1
        block: bytes = super().encode(headers, huffman)
        return block

    def block(self, fields: Fields) -> bytes | None:
        """Returns the header block of fields; None, and nothing is changed, where they may be too large for a frame."""
        table = self.header_table
        known = self._blocks.get(fields)
        if known is not None and known[0] == table.changes:
            return known[1]
        if sum([len(name) + len(value) for name, value in fields]) > BLOCK_FIELDS_BYTES_MAX:
            return None
        before = table.changes
        block = self.encode(fields)
        if table.changes == before:
            if len(self._blocks) >= BLOCKS_MAX:
                self._blocks.clear()
            self._blocks[fields] = before, block
        return block

    def forget(self) -> None:
        """Drops the blocks that are remembered."""
        self._blocks.clear()
