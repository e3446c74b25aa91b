"""The gateway's HTTP port, asked in the name of the logged-in user: consumer groups, single messages, commands.

The gateway decides on that user's rights, by its access rules. On loopback, without users, requests have no name.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import msgspec

TIMEOUT_S = 3.0
ANSWER_BYTES_MAX = 8 * 1024 * 1024
GROUPS_COUNT_MAX = 50  # groups whose lag is asked for, by name
COMMAND_BYTES_MAX = 65_536
Credentials = tuple[str, str]  # name and password
_FORBIDDEN = (401, 403)
_DOTS = frozenset({".", ".."})  # segments that clients and proxies take out of a path (RFC 3986, 6.2.2.3), escaped too


class GatewayRefused(Exception):
    """The gateway did not do it; the text is a sentence."""


class ConsumerGroup(NamedTuple):
    """A consumer group: each of its queues has `queue`, `offset`, `end`, `lag` and `member`."""

    name: str
    topic: str
    members: int
    lag: int
    queues: list[Mapping[str, Any]]


class QueuePart(NamedTuple):
    """Messages of a queue as CloudEvents, each with `headgateoffset`; `after`: where there is more to read."""

    events: list[Mapping[str, Any]]
    after: int | None


class GatewayApi:
    """Asks a gateway over HTTP. Shared by all threads."""

    def __init__(self, url: str, *, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.Client(timeout=TIMEOUT_S, transport=transport, trust_env=False)

    def close(self) -> None:
        """Ends its connections."""
        self._client.close()

    def groups(self, who: Credentials | None) -> list[ConsumerGroup]:
        """Returns the first `GROUPS_COUNT_MAX` consumer groups, the greatest lag first. Raises `GatewayRefused`."""
        found = []
        for one in self._json("GET", f"/groups?limit={GROUPS_COUNT_MAX}", who):
            said = self._json("GET", f"/groups/{quote(one['group'], safe='')}", who)
            found.append(ConsumerGroup(one["group"], said["topic"], len(said["members"]), said["lag"], said["queues"]))
        return sorted(found, key=lambda group: (-group.lag, group.name))

    def read_queue(
        self,
        queue: int,
        addresses: Sequence[str],
        who: Credentials | None,
        *,
        offset: int,
        limit: int,
        stored_until_ms: int | None = None,
    ) -> QueuePart:
        """Returns messages of some addresses in a queue, oldest first. Raises `GatewayRefused`."""
        until = [] if stored_until_ms is None else [("to", str(stored_until_ms))]
        query = [("queue", str(queue)), ("offset", str(offset)), ("limit", str(limit)), *until]
        path = f"/messages?{httpx.QueryParams([*query, *(('address', one) for one in addresses)])}"
        found, answer = self._asked("GET", path, who)
        link = answer.links.get("next", {}).get("url", "")
        after = httpx.URL(link).params.get("after", "")
        return QueuePart(found, int(after) if after.isdigit() else None)

    def message(self, queue: int, offset: int, address: str, who: Credentials | None) -> Mapping[str, Any] | None:
        """Returns the message at an offset as a CloudEvent; None when it is not there. Raises `GatewayRefused`."""
        found = self.read_queue(queue, [address], who, offset=offset, limit=1).events
        return found[0] if found and found[0].get("headgateoffset") == str(offset) else None

    def publish(self, address: str, body: bytes, content_type: str, who: Credentials | None) -> str:
        """Publishes a message; returns its place in the log. Raises `GatewayRefused`."""
        if len(body) > COMMAND_BYTES_MAX:
            raise GatewayRefused(f"A command has {COMMAND_BYTES_MAX:,} bytes at most, and this one {len(body):,}.")
        if not _DOTS.isdisjoint(address.split("/")):
            raise GatewayRefused(f"A URL cannot have the address {address}: it has a level `.` or `..`. Use MQTT.")
        path = f"/topics/{quote(address, safe='/')}"
        return str(self._json("POST", path, who, content=body, headers={"content-type": content_type})["position"])

    def _json(self, method: str, path: str, who: Credentials | None, **more: Any) -> Any:
        return self._asked(method, path, who, **more)[0]

    def _asked(self, method: str, path: str, who: Credentials | None, **more: Any) -> tuple[Any, httpx.Response]:
        auth = None if who is None else httpx.BasicAuth(*who)
        try:
            with self._client.stream(method, f"{self.url}{path}", auth=auth, **more) as answer:
                body = b""
                for piece in answer.iter_bytes():
                    body += piece
                    if len(body) > ANSWER_BYTES_MAX:
                        raise GatewayRefused(f"The gateway's answer has more than {ANSWER_BYTES_MAX:,} bytes.")
        except (httpx.HTTPError, UnicodeError) as error:
            why = str(error) or type(error).__name__
            raise GatewayRefused(
                f"The gateway at {self.url} does not answer: {why}. Name another with --gateway."
            ) from error
        try:
            said = msgspec.json.decode(body)
        except msgspec.DecodeError as error:
            raise GatewayRefused(f"{self.url} answers {answer.status_code}, and not as a gateway does.") from error
        if answer.is_success:
            return said, answer
        detail = said.get("detail") or said.get("title") if isinstance(said, dict) else ""
        if answer.status_code in _FORBIDDEN:
            user = "Clients without a name" if who is None else who[0]
            raise GatewayRefused(f"{user} may not do that: {detail or answer.reason_phrase}.")
        raise GatewayRefused(f"The gateway refuses: {detail or answer.reason_phrase}.")
