"""Agreement on seals: each replica compares the digests of its closed segments with those of the others.

Equal segments have equal digests. Where they differ, frames with sound checksums are not the ones that the group has:
no scrub finds that. The one that is in the minority has the whole segment repaired from the others.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from store.base.errors import CorruptFrame, StoreError, StoreUnreachable
from store.base.streams import Stream, opened
from store.format.frame import LogOffset
from store.integrity.seals import Seal
from store.local.local import LocalStore
from store.node.replica.context import ReplicaContext
from store.replication.errors import BadMessage
from store.replication.sealing import SealVerdict, judge
from store.rpc import replica_wire as wire
from store.rpc.replica_wire import SEALS_MAX, SealsAnswer, SealsRequest

logger = logging.getLogger(__name__)

LOOK_S = 10.0  # between two looks for seals that are not compared yet
ANSWER_S = 5.0  # that a replica takes to answer
READ_BYTES = 4 << 20  # of a segment at a time, where it is read again


class Agreement:
    """The agreement on seals of one node, in either role. `run` does it."""

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self._agreed: dict[tuple[LogOffset, LogOffset], bytes] = {}  # digests by segment, no more than there are seals
        self._logged: set[tuple[LogOffset, LogOffset]] = set()  # segments that differ, as it was logged

    async def run(self) -> None:
        """Compares new seals now and then."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except StoreError as error:
                logger.debug("seals are not compared: %s", error)
            except Exception:
                logger.exception("the comparison of seals has failed")

    async def look(self) -> None:
        """Compares the seals that are not compared yet. Raises `StoreError`."""
        store = self._context.disk.store
        if store is None:
            return
        seals = store.seals()
        known = {(seal.start, seal.end): seal.digest for seal in seals}
        self._agreed = {one: digest for one, digest in self._agreed.items() if known.get(one) == digest}
        self._logged &= known.keys()
        confirmed = store.log.confirmed
        new = [one for one in seals if one.end <= confirmed and self._agreed.get((one.start, one.end)) != one.digest]
        if new:
            await self._compare(store, new[:SEALS_MAX])

    async def _compare(self, store: LocalStore, seals: Sequence[Seal]) -> None:
        context, group = self._context, self._context.known()
        others: dict[int, Sequence[bytes]] = {}
        for one in group.replicas:
            if one.id != context.replica:
                with suppress(StoreUnreachable, BadMessage):
                    others[one.id] = await self._ask(one.address, seals)
        for i, seal in enumerate(seals):
            digests = {id_: answered[i] for id_, answered in others.items()}
            verdict = judge(
                seal.digest,
                digests,
                replica=context.replica,
                replicas=[one.id for one in group.replicas],
                master=group.master,
            )
            if verdict is SealVerdict.SAME:
                self._agreed[seal.start, seal.end] = seal.digest
            elif verdict is not SealVerdict.UNKNOWN and await self._is_sound(store, seal):
                await self._differ(store, seal, verdict)

    async def _differ(self, store: LocalStore, seal: Seal, verdict: SealVerdict) -> None:
        """Reports replicas that have different frames with sound checksums, and repairs the one that is wrong."""
        if verdict is SealVerdict.OWN:
            logger.critical(
                "the other replicas have other frames than this one in the segment from %d to %d, all with sound "
                "checksums: it is repaired from them",
                seal.start,
                seal.end,
            )
            await store.replication.distrust(seal.start, seal.end)
            self._context.repairing.look()
        elif (seal.start, seal.end) not in self._logged:
            self._logged.add((seal.start, seal.end))
            undecided = verdict is SealVerdict.UNDECIDED
            logger.critical(
                "another replica has other frames than this one in the segment from %d to %d, all with sound "
                "checksums: %s",
                seal.start,
                seal.end,
                "which are right is decided when all have answered" if undecided else "it repairs it from this one",
            )

    async def _is_sound(self, store: LocalStore, seal: Seal) -> bool:
        """Reads a segment again, and reports damage, which is repaired as any other."""
        at = seal.start
        try:
            while at < seal.end and (data := await store.replication.read_log(at, READ_BYTES, end=seal.end)):
                at = LogOffset(at + len(data))
        except CorruptFrame:
            self._context.repairing.look()
            return False
        return at == seal.end

    async def _ask(self, address: str, seals: Sequence[Seal]) -> Sequence[bytes]:
        """Returns the digests that a replica has. Raises `StoreUnreachable`, `BadMessage`."""
        context = self._context
        request = SealsRequest(
            group=context.group,
            replica=context.replica,
            segments=tuple([(one.start, one.end) for one in seals]),
            cluster=context.identity.cluster,
            log=context.disk.log,
            check=context.identity.check,
        )
        async with opened(context.dial(address)) as channel:
            call = channel.unary_stream(wire.path(wire.SEALS))(wire.encode(request))
            stream = Stream(call, wire.ERRORS, f"the replica at {address}")
            async with stream.within(ANSWER_S):
                answer = wire.decode(await stream.read(), SealsAnswer)
        if len(answer.digests) != len(seals):
            raise BadMessage(f"{len(answer.digests)} digests, where {len(seals)} were asked for")
        return answer.digests
