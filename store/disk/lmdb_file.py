"""Tells whether an LMDB file has all its pages, and whether they fit together, without mapping it.

Reading a missing page kills the process, and so does a page that LMDB does not expect: it asserts on it, or follows an
offset in the page beyond the file.

A file may lawfully end before its last page number: pages that a transaction took and gave back were never written. So
where it does, the trees are walked and only pages in use count. The layout is LMDB's on a little-endian machine of
64 bits (mdb.c: MDB_page, MDB_meta, MDB_node, MDB_db).
"""

import os
import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

_PAGE = struct.Struct("<QHHHH")  # number, pad, flags, lower (the end of the node pointers), upper
_META = struct.Struct(
    "<IIQQ48s48sQQ"
)  # magic, version, address, map size, free list, main tree, last page, transaction
_DB = struct.Struct("<IHHQQQQQ")  # pad (the page size, in the free list's), flags, depth, 3 x pages, entries, root
_NODE = struct.Struct("<HHHH")  # lo, hi, flags, key size
_MAGIC = 0xBEEFC0DE
_NO_PAGE = (1 << 64) - 1
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4  # page flags
_KINDS = _BRANCH | _LEAF | _OVERFLOW | 0x20 | 0x40  # and pages of keys with several values
_BIG, _SUBTREE = 1, 2  # node flags: the value is in pages of its own; the value is another tree
_PAGE_BYTES_MIN, _PAGE_BYTES_MAX = 256, 65_536
_METAS = 2  # the first pages, which are in no tree
_LOOK = 64  # pages between two looks at the clock


class _Short(Exception):
    """A page in use is not in the file, or is of another kind than its place needs."""


def is_cut_short(path: Path) -> bool:
    """Returns whether an LMDB data file lacks pages that its newest transaction uses.

    False for no file, an empty one and one that is not LMDB's: LMDB itself is the judge of those. Raises OSError.
    """
    with _opened(path) as file:
        if file is None or file.size >= (file.last_page + 1) * file.page_size:
            return False
        if not file.page_size:
            return True
        walk = _Walk(file.fd, file.page_size, file.pages)
        try:
            walk.tree(file.free)
            walk.tree(file.main)
        except (_Short, struct.error):
            return True
        return False


def is_broken(path: Path) -> bool:
    """Returns whether the newest transaction of an LMDB data file uses pages that do not fit together.

    All its pages are read. For files without trees in trees, and with one value for each key. Damage between the nodes
    of a page is for checksums to find. False for no file, an empty one and one that is not LMDB's. Raises OSError.
    """
    with _opened(path) as file:
        if file is None:
            return False
        if not file.has_sound_pages:
            return True
        walk = _StrictWalk(file.fd, file.page_size, file.pages)
        try:
            walk.tree(file.free)  # its pages may have fewer nodes than others: LMDB leaves them so
            walk.children_min, walk.nodes_min = 2, 1
            walk.tree(file.main)
        except (_Short, struct.error):
            return True
        return False


def leads_astray(path: Path, *, within_s: float) -> bool:
    """Returns whether LMDB would leave the pages of a data file on its way to a leaf, or to a page to write.

    For files of named trees, with one value for each key. Of those trees only the pages above the leaves are read,
    about one in sixty, upper ones first, and no more than can be read `within_s`. Leaves and the pages of large values
    are for checksums. False for no file, an empty one and one that is not LMDB's. Raises OSError.
    """
    with _opened(path) as file:
        if file is None:
            return False
        if not file.has_sound_pages:
            return True
        until_s = perf_counter() + within_s
        walk = _BranchWalk(file.fd, file.page_size, file.pages, last_page=file.last_page, until_s=until_s)
        try:
            walk.run(file.free, file.main)
        except (_Short, struct.error):
            return True
        return False


class _OpenFile(NamedTuple):
    """A data file, and its newest transaction's metadata."""

    fd: int
    size: int  # bytes
    free: bytes
    main: bytes
    last_page: int
    map_size: int

    @property
    def page_size(self) -> int:
        """Returns the bytes of a page."""
        return int(_DB.unpack(self.free)[0])

    @property
    def pages(self) -> int:
        """Returns how many whole pages the file has."""
        return self.size // self.page_size

    @property
    def has_sound_pages(self) -> bool:
        """Returns whether its pages have a size that LMDB uses."""
        size = self.page_size
        return _PAGE_BYTES_MIN <= size <= _PAGE_BYTES_MAX and not size & (size - 1)


@contextmanager
def _opened(path: Path) -> Iterator[_OpenFile | None]:
    """Opens a data file; None for no file, an empty one and one that is not LMDB's. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        size = os.fstat(fd).st_size
        meta = _newest_meta(fd)
        yield None if meta is None else _OpenFile(fd, size, *meta)
    finally:
        os.close(fd)


def _newest_meta(fd: int) -> tuple[bytes, bytes, int, int] | None:
    """Returns free list, main tree, last page and map size of the newest transaction; None where none can be read."""
    found: list[tuple[int, bytes, bytes, int, int]] = []
    first = os.pread(fd, _PAGE.size + _META.size, 0)
    if len(first) < _PAGE.size + _META.size:
        return None
    page_size = _DB.unpack(_META.unpack_from(first, _PAGE.size)[4])[0]
    for data in (first, os.pread(fd, _PAGE.size + _META.size, page_size)):
        if len(data) == len(first):
            magic, _, _, map_size, free, main, last_page, transaction = _META.unpack_from(data, _PAGE.size)
            if magic == _MAGIC:
                found.append((transaction, free, main, last_page, map_size))
    return max(found)[1:] if found else None


def is_mapped_beyond(path: Path, size: int) -> bool:
    """Returns whether an LMDB data file says that it needs more than `size` bytes of address space. Raises OSError."""
    with _opened(path) as file:
        return file is not None and max(file.map_size, (file.last_page + 1) * file.page_size) > size


class _Walk:
    """The pages in use, each read once."""

    def __init__(self, fd: int, page_size: int, pages: int) -> None:
        self._fd = fd
        self._page_size = page_size
        self._pages = pages  # whole ones in the file
        self._seen: set[int] = set()  # of trees

    def tree(self, db: bytes) -> None:
        """Reads a tree and those in it. Raises `_Short`."""
        root = _DB.unpack(db)[-1]
        waiting = [] if root == _NO_PAGE else [root]
        while waiting:
            number = waiting.pop()
            if number in self._seen:
                raise _Short
            self._seen.add(number)
            data, flags = self._page(number)
            if flags & _BRANCH:
                waiting += [lo | hi << 16 | top << 32 for lo, hi, top, _, _ in _nodes(data)]
            elif flags & _LEAF:
                self._leaf(data)
            else:
                raise _Short

    def _leaf(self, data: bytes) -> None:
        for _, _, flags, key_size, at in _nodes(data):
            value = at + _NODE.size + key_size
            if flags & _BIG:
                self._big(int.from_bytes(data[value : value + 8], "little"))
            elif flags & _SUBTREE:
                self.tree(data[value : value + _DB.size])

    def _big(self, number: int) -> None:
        data, flags = self._page(number)
        count = int.from_bytes(data[12:16], "little")  # in place of lower and upper
        if not flags & _OVERFLOW or number + count > self._pages:
            raise _Short

    def _page(self, number: int) -> tuple[bytes, int]:
        if number >= self._pages:
            raise _Short
        data = os.pread(self._fd, self._page_size, number * self._page_size)
        own, _, flags, _, _ = _PAGE.unpack_from(data)
        if own != number:
            raise _Short
        return data, flags


class _StrictWalk(_Walk):
    """A walk that refuses pages that LMDB would fail on: wrong kinds, depths, and offsets that leave the page."""

    leaf_flags = _BIG  # that nodes of leaves may have

    def __init__(self, fd: int, page_size: int, pages: int) -> None:
        super().__init__(fd, page_size, pages)
        self.children_min, self.nodes_min = 1, 0

    def tree(self, db: bytes) -> None:
        """Reads a tree. Raises `_Short`."""
        depth, root = _DB.unpack(db)[2], _DB.unpack(db)[-1]
        if (root == _NO_PAGE) != (depth == 0):
            raise _Short
        waiting = [] if root == _NO_PAGE else [(root, 1)]
        while waiting:
            number, level = waiting.pop()
            if number in self._seen:
                raise _Short
            self._seen.add(number)
            data, flags = self._page(number)
            if flags & _KINDS != (_LEAF if level == depth else _BRANCH):
                raise _Short
            self._check_nodes(data)
            if level == depth:
                self._leaf(data)
            else:
                children = [lo | hi << 16 | top << 32 for lo, hi, top, _, _ in _nodes(data)]
                if len(children) < self.children_min:
                    raise _Short
                waiting += [(child, level + 1) for child in children]

    def _check_nodes(self, data: bytes) -> None:
        lower, upper = _PAGE.unpack_from(data)[3:]
        if not _PAGE.size + 2 * self.nodes_min <= lower <= upper <= len(data) or lower & 1:
            raise _Short
        leaf = _PAGE.unpack_from(data)[2] & _LEAF
        for lo, hi, flags, key_size, at in _nodes(data):
            size = (8 if flags & _BIG else lo | hi << 16) if leaf else 0
            if at < upper or at + _NODE.size + key_size + size > len(data) or (leaf and flags & ~self.leaf_flags):
                raise _Short

    def _leaf(self, data: bytes) -> None:
        for lo, hi, flags, key_size, at in _nodes(data):
            if flags & _BIG:
                value = at + _NODE.size + key_size
                number = int.from_bytes(data[value : value + 8], "little")
                self._big(number)
                count = int.from_bytes(self._page(number)[0][12:16], "little")
                if _PAGE.size + (lo | hi << 16) > count * self._page_size:
                    raise _Short


class _BranchWalk(_StrictWalk):
    """A walk over the main tree, the list of free pages, and the branches of the named trees."""

    leaf_flags = _BIG | _SUBTREE

    def __init__(self, fd: int, page_size: int, pages: int, *, last_page: int, until_s: float) -> None:
        super().__init__(fd, page_size, pages)
        self._until_s = until_s  # by `perf_counter`
        self._named: list[bytes] = []
        self._read_count = 0
        self._known = bytearray(pages)  # by page: 1 where it is free, or has its place in a tree
        self._last_page = last_page

    def run(self, free: bytes, main: bytes) -> None:
        """Reads them, until time is up. Raises `_Short`."""
        self._descend([free], self._free_leaf)  # its pages may have fewer nodes than others: LMDB leaves them so
        self.children_min, self.nodes_min = 2, 1
        self._descend([main], self._main_leaf)
        self._descend(self._named, None)

    def _descend(self, dbs: Sequence[bytes], on_leaf: Callable[[bytes], None] | None) -> None:
        """Reads trees level by level; without `on_leaf` the first leaf of each branch's first is all that is read."""
        waiting: deque[tuple[int, int, int]] = deque()
        for db in dbs:
            depth, root = _DB.unpack(db)[2], _DB.unpack(db)[-1]
            if (root == _NO_PAGE) != (depth == 0):
                raise _Short
            if depth:
                self._place([root])
                waiting.append((root, 1, depth))
        while waiting:
            number, level, depth = waiting.popleft()
            self._read_count += 1
            if not self._read_count % _LOOK and perf_counter() > self._until_s:
                return
            data, flags = self._page(number)
            if flags & _KINDS != (_LEAF if level == depth else _BRANCH):
                raise _Short
            self._check_nodes(data)
            if level < depth:
                waiting.extend((child, level + 1, depth) for child in self._children(data, level + 1 == depth, on_leaf))
            elif on_leaf is not None:
                on_leaf(data)

    def _children(self, data: bytes, of_leaves: bool, on_leaf: object) -> list[int]:
        """Returns the children of a branch that are to be read."""
        children = [lo | hi << 16 | top << 32 for lo, hi, top, _, _ in _nodes(data)]
        if len(children) < self.children_min:
            raise _Short
        self._place(children)
        return children[:1] if of_leaves and on_leaf is None else children

    def _place(self, pages: Sequence[int]) -> None:
        """Notes the pages' places; each page has one. Raises `_Short`."""
        known = self._known
        for page in pages:
            if not _METAS <= page < len(known) or known[page]:
                raise _Short
            known[page] = 1

    def _main_leaf(self, data: bytes) -> None:
        self._leaf(data)
        for lo, hi, flags, key_size, at in _nodes(data):
            if flags & _SUBTREE:
                if lo | hi << 16 != _DB.size:
                    raise _Short
                value = at + _NODE.size + key_size
                self._named.append(data[value : value + _DB.size])

    def _free_leaf(self, data: bytes) -> None:
        self._leaf(data)
        for lo, hi, flags, key_size, at in _nodes(data):
            value, size = at + _NODE.size + key_size, lo | hi << 16
            if flags & _BIG:
                number = int.from_bytes(data[value : value + 8], "little")
                listed = os.pread(self._fd, size, number * self._page_size + _PAGE.size)
            else:
                listed = data[value : value + size]
            self._free(listed)

    def _free(self, listed: bytes) -> None:
        """Checks a list of pages that a transaction gave back: their count, and then them."""
        pages = array("Q", listed[: len(listed) & ~7])
        if not pages or pages[0] >= len(pages):
            raise _Short
        of_list = pages[1 : pages[0] + 1]
        if of_list and max(of_list) > self._last_page:
            raise _Short
        self._place([page for page in of_list if page < self._pages])  # others were never written


def _nodes(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Yields the nodes of a page: lo, hi, flags, key size, and where the node is."""
    lower = _PAGE.unpack_from(data)[3]
    for (at,) in struct.iter_unpack("<H", data[_PAGE.size : max(lower, _PAGE.size) & ~1]):
        yield (*_NODE.unpack_from(data, at), at)
