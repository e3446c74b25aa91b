"""The offsets of a streaming query as those of a consumer group, so that the gateway shows how far it is behind.

Spark's checkpoint alone decides where a query goes on. The group learns it after a micro-batch, every few seconds, and
a failed report is logged and made up for by the next: an unreachable gateway does not stop a query.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote

import msgspec

from spark.errors import BadOption, GatewayUnreachable, PublishRefused
from spark.publishing.client import GatewayClient
from spark.source.options import SourceOptions

INTERVAL_S: Final = 5.0
_NOT_THERE: Final = frozenset({404})
_NONE: Final[frozenset[int]] = frozenset()

log = logging.getLogger(__name__)


class GroupProgress:
    """Tells a gateway how far a group has read its topic."""

    def __init__(
        self,
        client: GatewayClient,
        group: str,
        topic: str,
        *,
        interval_s: float = INTERVAL_S,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._topic, self._group = client, topic, group
        self._path = f"/groups/{quote(group, safe='')}"
        self._interval_s, self._clock_s = interval_s, clock_s
        self._told_s: float | None = None
        self._ready = False
        self._next: Mapping[int, int] | None = None  # not told yet
        self._known: Mapping[int, int] | None = None  # told last

    @classmethod
    def of(cls, options: SourceOptions) -> "GroupProgress":
        """Returns the progress of a query with these options, which name a group and one topic. Raises `BadOption`."""
        client = GatewayClient(
            options.gateway,
            user=options.user,
            password=options.password,
            token=options.token,
            authority=options.gatewayCaFile,
            retry_s=0,
        )
        return cls(client, options.group, options.topic[0])

    def reached(self, offsets: Mapping[int, int], *, flush: bool = False) -> None:
        """Tells that everything before these offsets is done. Raises `BadOption` for a group that is others'.

        Not more often than at intervals, unless it is to be told `flush`; offsets that are known are not told again.
        """
        if offsets == self._known:
            return
        self._next = dict(offsets)
        now_s = self._clock_s()
        if flush or self._told_s is None or now_s - self._told_s >= self._interval_s:
            self._told_s = now_s
            self._report()

    def close(self) -> None:
        """Reports the last offsets, and closes the connection."""
        if self._next is not None:
            self._report()
        self._client.close()

    def _report(self) -> None:
        try:
            if not self._ready:
                self._prepare()
                self._ready = True
            document = {"to": "offset", "offsets": {str(queue): at for queue, at in (self._next or {}).items()}}
            if document["offsets"]:
                self._client.ask("POST", f"{self._path}/reset", content=msgspec.json.encode(document), again=_NONE)
            self._known, self._next = self._next, None
        except (GatewayUnreachable, PublishRefused) as error:
            log.warning("the offsets of group %s could not be committed: %s", self._group, error)

    def _prepare(self) -> None:
        """Makes the group if it is not there."""
        found = self._client.ask("GET", self._path, accept=_NOT_THERE, again=_NONE)
        if found.status in _NOT_THERE:
            asked = msgspec.json.encode({"topic": self._topic, "start": "earliest"})
            joined = self._client.ask("POST", f"{self._path}/members", content=asked, again=_NONE)
            self._client.ask(
                "DELETE", f"{self._path}/members/{joined.document['member']}", accept=_NOT_THERE, again=_NONE
            )
            return
        if found.document["topic"] != self._topic:
            raise BadOption("group", f"is {self._group}, which reads {found.document['topic']}, not {self._topic}")
        if found.document["members"]:
            raise BadOption("group", f"is {self._group}, which has members of its own; name another one")
