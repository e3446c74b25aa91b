"""Handshakes and output of the protocol layer of `websockets`, as several adapters answer and write them."""

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

import msgspec
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

# `websockets` notes each connection that opens or closes. Our own messages tell of failures.
QUIET: Final = logging.getLogger(f"{__name__}.websockets")
QUIET.setLevel(logging.CRITICAL + 1)
REASON_BYTES_MAX: Final = 123  # of a close frame (RFC 6455, 5.5)
DETAIL_CHARS_MAX: Final = 256  # of what `websockets` says of a request: it quotes the client
VERSION: Final = "13"
# Of a 426: the protocol and its version that are spoken here (RFC 6455, 4.4; RFC 9110, 15.5.22).
UPGRADE: Final = (("Connection", "close, Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", VERSION))


class RefusedHandshake(NamedTuple):
    """The refusal of a handshake."""

    status: int
    detail: str
    headers: Sequence[tuple[str, str]] = (("Connection", "close"),)


def judged(protocol: ServerProtocol, request: Request) -> Response | RefusedHandshake:
    """Returns the answer that opens a WebSocket, or the refusal of its handshake (RFC 6455, 4.2.2)."""
    answer = protocol.accept(request)
    if answer.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
        return answer
    if answer.status_code == HTTPStatus.UPGRADE_REQUIRED:
        return RefusedHandshake(answer.status_code, "this port speaks WebSocket", UPGRADE)
    if request.headers.get_all("sec-websocket-version") != [VERSION]:
        return RefusedHandshake(426, f"sec-websocket-version: only {VERSION} is known", UPGRADE)
    detail = (answer.body or b"").decode("utf-8", "replace").strip()[:DETAIL_CHARS_MAX]
    return RefusedHandshake(answer.status_code, detail)


def refusing(refused: RefusedHandshake) -> Response:
    """Returns a refusal as a response: a problem document (RFC 9457), with the Date of `websockets`."""
    title = HTTPStatus(refused.status).phrase
    body = msgspec.json.encode(
        {"type": "about:blank", "title": title, "status": refused.status, "detail": refused.detail}
    )
    date = ServerProtocol().reject(refused.status, "").headers["Date"]
    headers = Headers([("Date", date), *refused.headers, ("Content-Type", "application/problem+json")])
    headers["Content-Length"] = str(len(body))
    return Response(refused.status, title, headers, body)


def output_of(protocol: ServerProtocol) -> bytes:
    """Returns the output of `websockets`."""
    return b"".join(protocol.data_to_send())


def close_frame_of(protocol: ServerProtocol, code: int, reason: str) -> bytes:
    """Returns a close frame, unless one was sent or received; the reason is cut to fit."""
    if protocol.state is OPEN:
        text = reason.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore")
        protocol.send_close(code, text)
    return output_of(protocol)
