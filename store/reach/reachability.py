"""The complaint of one replica, or of one proxy, about the master of one group."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from controller.api.client import Group, Replica
from controller.complaints.messages import HINT_MS, Complaint
from store.reach.silence import PeerSilence

logger = logging.getLogger(__name__)

PROBE_AGAIN_MS = 1_000  # between two probes of the other replicas, while the master is silent


class MasterReachability:
    """`look` is called several times a second, `received` whenever the master has sent something.

    `answers` says whether a replica answers at an address; the others are asked after `probe_ms` of silence, so that
    after `complain_ms` it is known which of them the listener reaches. There is a complaint after `hint_ms`.
    """

    def __init__(
        self,
        answers: Callable[[str], Awaitable[bool]],
        *,
        probe_ms: int,
        complain_ms: int,
        hint_ms: int = HINT_MS,
    ) -> None:
        self._answers = answers
        self._probe_ms, self._complain_ms, self._hint_ms = probe_ms, complain_ms, hint_ms
        self._silence = PeerSilence()
        self._group: Group | None = None  # the group whose master is expected to send
        self._reaches: dict[int, None] = {}  # replicas that answered the newest probe; no more than the group has
        self._probing: asyncio.Task[None] | None = None
        self._told = (False, False)  # (there was a complaint, there was one that counts), at the last look
        self._probed_ms = 0  # of the silence, when the newest probe began

    def received(self) -> None:
        """Notes that the master has sent something."""
        self._silence.received()

    def look(self, group: Group | None, now_ms: int, *, me: int | None = None) -> bool:
        """Takes the time and the group's state, and returns whether a complaint has begun or ended.

        `group` None: no master is expected at present. `me` is the replica that listens, if it is one.
        """
        before, silence = self._told, self._silence
        silence.tick(now_ms)
        if group is None or group.master in {None, me}:
            self._group = None
        elif self._group is None or self._group.master_epoch != group.master_epoch:
            silence.begin()
            self._probed_ms = 0
            self._group = group
        else:
            self._group = group
        if self._group is None:
            silence.begin()
        elif silence.ms >= self._probe_ms:
            self._probe(self._group, me)
        else:
            self._reaches.clear()
            self._probed_ms = 0
        self._told = self._worth()
        return self._told != before

    @property
    def silent_ms(self) -> int:
        """Returns how long the master has been silent."""
        return self._silence.ms

    @property
    def complaint(self) -> Complaint | None:
        """The complaint of this moment; None: the master was heard."""
        group, silence = self._group, self._silence
        if group is None or silence.ms < self._hint_ms:
            return None
        return Complaint(
            group=group.number,
            epoch=group.master_epoch,
            silent_ms=silence.ms,
            met=silence.met,
            reaches=tuple(sorted(self._reaches)),
        )

    async def close(self) -> None:
        """Ends the requests in flight."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)

    def _worth(self) -> tuple[bool, bool]:
        complaint = self.complaint
        return complaint is not None, complaint is not None and complaint.silent_ms >= self._complain_ms

    def _probe(self, group: Group, me: int | None) -> None:
        """Asks the other replicas for an answer, now and every second."""
        due = not self._probed_ms or self._silence.ms - self._probed_ms >= PROBE_AGAIN_MS
        if due and (self._probing is None or self._probing.done()):
            self._probed_ms = self._silence.ms
            self._probing = asyncio.create_task(self._ask(group, me), name=f"probe of store group {group.number}")

    async def _ask(self, group: Group, me: int | None) -> None:
        others = [one for one in group.replicas if one.id not in {me, group.master} and one.address]
        found = await asyncio.gather(*map(self._ask_one, others), return_exceptions=True)
        for error in found:
            if isinstance(error, Exception):
                logger.warning("a replica of store group %d could not be asked", group.number, exc_info=error)

    async def _ask_one(self, replica: Replica) -> None:
        if await self._answers(replica.address):
            self._reaches[replica.id] = None
        else:
            self._reaches.pop(replica.id, None)
