"""The consumer groups of a running gateway, over its HTTP port, for `headgate groups`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec

from gateway.port.groups import GroupDescription, GroupName
from gateway.remote.http import RemoteGateway, RemoteRefused

if TYPE_CHECKING:
    import httpx

PAGE_COUNT = 1_000

T = TypeVar("T")


class _Offsets(msgspec.Struct):
    offsets: dict[int, int]


class GatewayGroups:
    """Groups of one gateway. Methods raise `Unreachable` and `RemoteRefused`."""

    def __init__(self, gateway: RemoteGateway) -> None:
        self._gateway = gateway

    def names(self) -> Iterator[GroupName]:
        """Yields all groups, by name."""
        target: str | None = f"/groups?limit={PAGE_COUNT}"
        while target is not None:
            answer = self._gateway.ask("GET", target)
            yield from self._read(answer, list[GroupName])
            target = answer.links.get("next", {}).get("url")

    def describe(self, group: str) -> GroupDescription:
        """Returns the offsets and the members of a group."""
        return self._read(self._gateway.ask("GET", f"/groups/{_quoted(group)}"), GroupDescription)

    def reset(
        self,
        group: str,
        *,
        to: str,
        timestamp: str | None = None,
        offsets: Mapping[int, int] | None = None,
        queues: Sequence[int] = (),
    ) -> dict[int, int]:
        """Moves a group's offsets; returns them."""
        asked: dict[str, Any] = {"to": to, "queues": list(queues)}
        if timestamp is not None:
            asked["timestamp"] = int(timestamp) if timestamp.isascii() and timestamp.isdigit() else timestamp
        if offsets is not None:
            asked["offsets"] = {str(queue): at for queue, at in offsets.items()}
        answer = self._gateway.ask("POST", f"/groups/{_quoted(group)}/reset", body=msgspec.json.encode(asked))
        return self._read(answer, _Offsets).offsets

    def delete(self, group: str) -> None:
        """Forgets a group."""
        self._gateway.ask("DELETE", f"/groups/{_quoted(group)}")

    def _read(self, answer: "httpx.Response", kind: type[T]) -> T:
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.DecodeError as error:
            raise RemoteRefused(
                answer.status_code, f"{self._gateway.url} does not answer as a gateway with groups does"
            ) from error


def _quoted(group: str) -> str:
    return quote(group, safe="")
