"""The refusals that clients get for errors of the store."""

import pytest

from gateway.domain.errors import Cause
from gateway.publishing.publishing import refusal_of
from store.base.errors import TimersFull, TimerTooFar
from store.integrity.views import ViewsHealth


def test_a_client_is_told_nothing_of_how_the_store_keeps_its_views():
    error = ViewsHealth().report("kv", "mdb_cursor_put() element #0: MDB_CORRUPTED: Located page was wrong type")
    refusal = refusal_of(error)
    assert (refusal.cause, refusal.retriable) == (Cause.UNAVAILABLE, True)
    assert "damaged" in refusal.detail
    assert not [one for one in ("mdb", "MDB", "'kv'", "rebuild-views") if one in refusal.detail]


@pytest.mark.parametrize(("error", "cause"), [(TimersFull("full"), Cause.QUOTA), (TimerTooFar("far"), Cause.MALFORMED)])
def test_a_store_that_takes_no_more_timers_refuses_the_message_and_is_not_unavailable(error, cause):
    refusal = refusal_of(error)
    assert (refusal.cause, refusal.detail) == (cause, str(error))
