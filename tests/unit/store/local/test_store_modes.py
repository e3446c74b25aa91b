"""Files that the store creates are readable by its user alone. The key that signs handles is among them."""

import os

import pytest

from store.local.local import LocalStore
from tests.support.store.store_kit import append, frame

pytestmark = pytest.mark.anyio


async def test_nobody_else_reads_what_is_created(tmp_path):
    before = os.umask(0)
    try:
        async with await LocalStore.open(tmp_path / "new" / "data") as store:
            await append(store, frame((16, b"a")))
            await store.leases.take(16, 1, max_count=1)
            await store.core.until_dispatched(store.log.confirmed)
    finally:
        os.umask(before)
    created = list(tmp_path.rglob("*"))
    assert {"LOCK", "data.mdb", "lock.mdb", "log", "views", "data", "new"} <= {path.name for path in created}
    modes = {str(path): path.stat().st_mode & 0o777 for path in created}
    assert modes == {str(path): 0o700 if path.is_dir() else 0o600 for path in created}
