"""A proxy's reports: which masters it cannot reach, told to the controllers' leader every second."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from controller.api.client import ControllerClient, ControllerError
from controller.complaints.messages import (
    PROXY_COMPLAIN_MS,
    REPORT_COMPLAINTS_MAX,
    REPORT_S,
    Complaint,
    Report,
)
from store.api.client import StoreClient
from store.base.rhythm import pause, until_next_s
from store.base.streams.event_wait import wait_at_most
from store.reach.probe import answers
from store.reach.reachability import MasterReachability
from store.remoting import RemoteStore

logger = logging.getLogger(__name__)

PROBE_MS = 1_500  # of silence before other replicas are asked for an answer: half as much again as between two pings
LOOK_S = 0.25  # between two looks at the connections: a sixth of the silence that is probed
CALM_LOOK_S = 0.5  # the same while no master has missed a ping
CALM_MS = 1_000  # of silence: a ping was not answered yet
NAME_BYTES = 8  # by chance, of a proxy's name


class Reporter:
    """A proxy's reports. `logs` are its clients of the groups; `report` tells the leader, and raises `ControllerError`.

    Belongs to the event loop. `run` does it until it is cancelled.
    """

    def __init__(
        self,
        controller: ControllerClient,
        logs: Callable[[], Mapping[int, StoreClient]],
        report: Callable[[Report], Awaitable[None]],
        *,
        now_ms: Callable[[], int],
        credentials: Any = None,
    ) -> None:
        self._controller = controller
        self._logs = logs
        self._report = report
        self._now_ms = now_ms
        self._credentials = credentials
        self._name = secrets.token_hex(NAME_BYTES)
        self._reaches: dict[int, MasterReachability] = {}  # by group
        self._received_s: dict[int, float] = {}  # group -> when its client had received something, as of the last look
        self._sooner = asyncio.Event()  # there is a complaint that is new

    async def run(self) -> None:
        """Looks which masters can be reached, and reports it to the controllers. Never returns."""
        reporting = asyncio.create_task(self._report_all(), name="reports to the controllers")
        try:
            while True:
                self._look()
                if reporting.done():
                    reporting.result()
                await pause(CALM_LOOK_S if self._is_calm else LOOK_S)
        finally:
            reporting.cancel()
            closing = (reach.close() for reach in self._reaches.values())
            await asyncio.gather(reporting, *closing, return_exceptions=True)

    def complaints(self) -> list[Complaint]:
        """Returns the complaints of this moment, those about the longest silence first."""
        found = [one for reach in self._reaches.values() if (one := reach.complaint) is not None]
        return sorted(found, key=lambda one: (-one.silent_ms, one.group))[:REPORT_COMPLAINTS_MAX]

    @property
    def _is_calm(self) -> bool:
        return all(reach.silent_ms <= CALM_MS for reach in self._reaches.values())

    def _look(self) -> None:
        now_ms = self._now_ms()
        logs = {number: log for number, log in self._logs().items() if isinstance(log, RemoteStore)}
        for number in [number for number in self._reaches if number not in logs]:
            del self._reaches[number]  # a probe that is in flight ends by itself
            self._received_s.pop(number, None)
        for number, log in logs.items():
            reach = self._reaches.get(number)
            if reach is None:
                reach = self._reaches[number] = MasterReachability(
                    self._probe_of(number),
                    probe_ms=PROBE_MS,
                    complain_ms=PROXY_COMPLAIN_MS,
                    hint_ms=PROXY_COMPLAIN_MS,  # a master answers a ping a second, so a shorter silence is no news
                )
            group = self._controller.group(number)
            master = group.replica(group.master) if group is not None and group.master is not None else None
            at, received_s = log.last_received
            if master is not None and at == master.address and received_s > self._received_s.get(number, 0.0):
                reach.received()
            self._received_s[number] = received_s
            if reach.look(group, now_ms):
                self._sooner.set()

    def _probe_of(self, number: int) -> Callable[[str], Awaitable[bool]]:
        return lambda address: answers(address, number, cluster=self._controller.cluster, credentials=self._credentials)

    async def _report_all(self) -> None:
        while True:
            self._sooner.clear()
            report = Report(proxy=self._name, complaints=tuple(self.complaints()))
            try:
                async with asyncio.timeout(2 * REPORT_S):
                    await self._report(report)
            except (ControllerError, TimeoutError) as error:
                logger.debug("the controllers could not be told which masters are unreachable: %s", error)
            await wait_at_most(self._sooner, until_next_s(REPORT_S))
