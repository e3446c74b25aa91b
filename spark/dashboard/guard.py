"""Admission: on loopback everybody who asks for this host, elsewhere users with a password (HTTP Basic, RFC 7617).

The names that a browser may call the host by are checked on loopback, so that a stranger's page, whose name was bound
to 127.0.0.1, reads nothing. Wrong passwords are answered slowly, a few at a time, and more are turned away: a client
that sends many of them leaves threads for users who are logged in.
"""

import hashlib
import hmac
import ipaddress
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from flask import Flask, Response, request

CheckPassword = Callable[[str, bytes], bool]
REMEMBERED_COUNT_MAX = 1_024
REMEMBERED_S = 300.0
COMPARING_COUNT_MAX = 2  # passwords that are compared at a time
WRONG_S = 0.5  # that the answer to a wrong password takes
_SAFE = ("GET", "HEAD", "OPTIONS")
EXPORTS = "/export/"  # a GET there runs a query, which takes memory and time
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def credentials() -> tuple[str, str] | None:
    """Returns the name and password of the request that is being answered; None for one without."""
    given = request.authorization
    if given is None or given.type != "basic" or not given.username:
        return None
    return given.username, given.password or ""


def guard(server: Flask, *, check: CheckPassword | None) -> None:
    """Checks every request to a server: its password, or without `check` the name of the host."""
    users = None if check is None else _Users(check)

    @server.before_request
    def _refuse() -> Any:
        if (request.method not in _SAFE or request.path.startswith(EXPORTS)) and not _is_ours():
            return Response("This request comes from a page of another site.\n", 403, content_type="text/plain")
        if users is not None:
            return users.refuse()
        host = request.host.rsplit(":", 1)[0] if not request.host.endswith("]") else request.host
        if host in LOCAL_NAMES or is_loopback(host.strip("[]")):
            return None
        return Response("This dashboard answers to localhost only.\n", 403, content_type="text/plain")

    @server.after_request
    def _harden(answer: Response) -> Response:
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers["X-Frame-Options"] = "DENY"
        answer.headers["Referrer-Policy"] = "same-origin"
        return answer


def _is_ours() -> bool:
    """Returns whether a request comes from a page of this dashboard or from none, as far as browsers say."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in {"same-origin", "none"}:
        return False
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc == request.host


class _Users:
    """Compares passwords, and remembers those that were right for a while: a page makes many requests."""

    def __init__(self, check: CheckPassword) -> None:
        self._check = check
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, float] = OrderedDict()  # digest -> until when
        self._lock = threading.Lock()
        self._turn = threading.BoundedSemaphore(COMPARING_COUNT_MAX)

    def refuse(self) -> Response | None:
        given = request.authorization
        if given is not None and given.type == "basic" and given.username:
            password = (given.password or "").encode("utf-8", "surrogateescape")
            right = self._is_right(given.username, password)
            if right:
                return None
            if right is None:
                return Response("Too many passwords are compared at once: try again.\n", 503, {"Retry-After": "1"})
        headers = {"WWW-Authenticate": 'Basic realm="Headgate dashboard", charset="UTF-8"'}
        return Response("A user name and a password of the gateway are needed.\n", 401, headers)

    def _is_right(self, name: str, password: bytes) -> bool | None:
        """Returns whether a password is right; None where others are compared, and this one was never right."""
        digest = hmac.digest(self._key, name.encode("utf-8", "surrogateescape") + b"\0" + password, hashlib.sha256)
        with self._lock:
            right_until_s = self._right.get(digest)
        if right_until_s is not None and right_until_s > time.monotonic():
            return True
        if not self._turn.acquire(blocking=right_until_s is not None):
            return None
        try:
            if not self._check(name, password):
                time.sleep(WRONG_S)
                with self._lock:
                    self._right.pop(digest, None)
                return False
        finally:
            self._turn.release()
        with self._lock:
            self._right[digest] = time.monotonic() + REMEMBERED_S
            self._right.move_to_end(digest)
            if len(self._right) > REMEMBERED_COUNT_MAX:
                self._right.popitem(last=False)
        return True
