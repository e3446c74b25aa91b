"""Who sends a request: the Basic scheme (RFC 7617)."""

from base64 import b64decode
from typing import TypeAlias

from adapters.http.request import HttpError, Request
from adapters.http.response import CHALLENGE
from gateway.errors import Cause, Refusal

__all__ = ["Credentials", "read_credentials"]

Credentials: TypeAlias = tuple[str, bytes] | None  # name and password; None: anonymous


def read_credentials(request: Request) -> Credentials:
    """Name and password, None where the request has no Authorization. Raises `HttpError` and `Refusal`."""
    header = request.get(b"authorization")
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "basic":
        raise HttpError(401, "authorization: only the Basic scheme is known", headers=(CHALLENGE,))
    try:
        name, colon, password = b64decode(token.strip(), validate=True).partition(b":")
        username = name.decode()
    except ValueError as error:
        raise HttpError(400, "authorization: not Basic credentials", attribute="authorization") from error
    if not colon:
        raise Refusal(Cause.UNAUTHENTICATED, "authorization: there is no colon between name and password")
    return username, password
