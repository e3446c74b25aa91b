"""Transactions: a `Publish` that is done as a whole, and its settlements."""

from collections.abc import MutableMapping

from gateway.publishing.publishing import Building, Receipt
from gateway.publishing.routing.router import Router
from store.api.client import StoreClient
from store.api.log import Appended
from store.base.errors import StoreError, StoreUnreachable
from store.format.frame import origin_of


def complete(receipt: Receipt, building: MutableMapping[int, Building], router: Router) -> None:
    """Adds a transaction's settlements to its frames, which are all of `building`; takes all back if any is refused."""
    assert receipt.transaction is not None
    if receipt.refused or receipt.denied:
        _refuse(receipt, building, router)
        return
    owner: int = getattr(receipt.publisher, "id", 0)
    for queue, offsets in receipt.transaction.settled:
        for lane, some in router.lanes.split(queue, offsets):
            group = router.group_of(lane)
            if group is None:
                continue  # a queue that is gone: nothing has to be settled there
            frame = building.get(group)
            if frame is None:
                frame = building[group] = Building(group)
            if frame not in receipt.parts:
                frame.enter(receipt)
            frame.settles.append((lane, some))
            frame.owner = owner
    receipt.runs = ()


def _refuse(receipt: Receipt, building: MutableMapping[int, Building], router: Router) -> None:
    """Refuses all of a transaction for the first reason that there is."""
    why = next(iter((*receipt.denied.values(), *receipt.refused.values())))
    for frame in building.values():
        for queue, admitted in frame.named.items():
            if admitted and (gate := router.gates.get(queue)) is not None:
                gate.landed(admitted)
    building.clear()
    receipt.parts, receipt.runs, receipt.overflowed = {}, (), ()
    receipt.counts.clear()
    receipt.refused = receipt.refused or {0: why}


async def commit(store: StoreClient | None, frame: Building) -> Appended | StoreError:
    """Stores a frame and its settlements; returns the error instead of raising it."""
    if store is None:
        return StoreUnreachable(f"store group {frame.group} is not known here")
    try:
        await store.leases.commit(frame.owner, frame.settles, b"".join(frame.rows), b"".join(frame.records))
    except StoreError as error:
        return error
    return Appended(origin_of(frame.group))
