"""The gateway's HTTP port, asked in the name of the logged-in user: consumer groups, single messages, commands.

The gateway decides on that user's rights, by its access rules. On loopback, without users, requests have no name.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import msgspec

TIMEOUT_S = 3.0
ANSWER_BYTES_MAX = 8 * 1024 * 1024
GROUPS_COUNT_MAX = 50  # groups whose lag is asked for, by name
LINES_COUNT_MAX = 40_000  # of server-sent events that are skipped on the way to one message
COMMAND_BYTES_MAX = 65_536
Credentials = tuple[str, str]  # name and password
_POSITION = re.compile(r"[0-9a-f]{1,16}\.\d{1,9}")
_FORBIDDEN = (401, 403)


class GatewayRefused(Exception):
    """The gateway did not do it; the text is a sentence."""


class ConsumerGroup(NamedTuple):
    """A consumer group: each of its queues has `queue`, `offset`, `end`, `lag` and `member`."""

    name: str
    topic: str
    members: int
    lag: int
    queues: list[Mapping[str, Any]]


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

    def message(self, position: str, address: str, who: Credentials | None) -> Mapping[str, Any] | None:
        """Returns the message at a position of the log as a CloudEvent; None when it is not there.

        Raises `GatewayRefused`.

        A message without an id of its own is found by its position. Any other is the first that a subscriber to its
        address reaches a reader that goes on from just before it.
        """
        found = self._json("GET", f"/messages?id={quote(position, safe='')}&limit=1", who)
        if found or not address or not _POSITION.fullmatch(position):
            return found[0] if found else None
        frame = int(position.partition(".")[0], 16)
        headers = {"last-event-id": f"{max(0, frame - 1):x}.0"}
        try:
            return self._read_events(f"/subscribe?filter={quote(address, safe='')}", headers, position, who)
        except httpx.TimeoutException:
            return None  # an empty answer: it is gone
        except (httpx.HTTPError, UnicodeError) as error:
            raise GatewayRefused(
                f"The gateway at {self.url} does not answer: {error or type(error).__name__}."
            ) from error

    def _read_events(
        self, path: str, headers: Mapping[str, str], position: str, who: Credentials | None
    ) -> Mapping[str, Any] | None:
        """Reads server-sent events up to the one with an id."""
        auth = None if who is None else httpx.BasicAuth(*who)
        at = ""
        with self._client.stream("GET", f"{self.url}{path}", auth=auth, headers=headers) as answer:
            if not answer.is_success:
                raise GatewayRefused(f"The gateway refuses: {answer.reason_phrase}.")
            for count, line in enumerate(answer.iter_lines()):
                if line.startswith("id: "):
                    at = line[4:]
                elif line.startswith("data: ") and at == position:
                    found: Mapping[str, Any] = msgspec.json.decode(line[6:])
                    return found
                if count > LINES_COUNT_MAX:
                    break
        return None

    def publish(self, address: str, body: bytes, content_type: str, who: Credentials | None) -> str:
        """Publishes a message; returns its place in the log. Raises `GatewayRefused`."""
        if len(body) > COMMAND_BYTES_MAX:
            raise GatewayRefused(f"A command has {COMMAND_BYTES_MAX:,} bytes at most, and this one {len(body):,}.")
        path = f"/topics/{quote(address, safe='/')}"
        return str(self._json("POST", path, who, content=body, headers={"content-type": content_type})["position"])

    def _json(self, method: str, path: str, who: Credentials | None, **more: Any) -> Any:
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
            return said
        detail = said.get("detail") or said.get("title") if isinstance(said, dict) else ""
        if answer.status_code in _FORBIDDEN:
            user = "Clients without a name" if who is None else who[0]
            raise GatewayRefused(f"{user} may not do that: {detail or answer.reason_phrase}.")
        raise GatewayRefused(f"The gateway refuses: {detail or answer.reason_phrase}.")
