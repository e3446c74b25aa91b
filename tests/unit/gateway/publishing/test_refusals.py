"""The refusals that clients get for errors of the store."""

from gateway.domain.errors import Cause
from gateway.publishing.publishing import refusal_of
from store.integrity.views import ViewsHealth


def test_a_client_is_told_nothing_of_how_the_store_keeps_its_views():
    error = ViewsHealth().report("kv", "mdb_cursor_put() element #0: MDB_CORRUPTED: Located page was wrong type")
    refusal = refusal_of(error)
    assert (refusal.cause, refusal.retriable) == (Cause.UNAVAILABLE, True)
    assert "damaged" in refusal.detail
    assert not [one for one in ("mdb", "MDB", "'kv'", "rebuild-views") if one in refusal.detail]
