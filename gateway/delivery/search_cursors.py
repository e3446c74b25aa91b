"""Cursors of searches, sealed: a page's cursor tells its reader nothing, and is of no use to others.

    nonce (12 bytes), then AES-128-GCM of: the frame's log offset (8 bytes), the row (4 bytes), the tag (16 bytes)

in base64url without padding: 54 characters, whatever the position. A user's key is made of the cluster's, so a cursor
is good at every gateway of a cluster. Only users restricted by rules get sealed cursors; others get positions.
"""

import base64
import binascii
import secrets
import struct
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.domain.errors import Cause, Refusal
from store.format.frame import LogOffset, Position

CURSOR_CHARS: Final = 54
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 16
_POSITION: Final = struct.Struct(">QI")
_ABOUT: Final = b"headgate search cursor"


class BadCursor(Refusal):
    """A cursor that no page before has given."""

    attribute = "after"

    def __init__(self) -> None:
        super().__init__(Cause.MALFORMED, "after: is not a value that an earlier page has given")


class CursorSeal:
    """Seals the cursors of one user. `secret` is the user's, of at least 16 bytes."""

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESGCM(secret[:_KEY_BYTES])

    def seal(self, position: Position) -> str:
        """Returns a cursor that stands for a position."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, _POSITION.pack(position.frame, position.row), _ABOUT)
        return base64.urlsafe_b64encode(nonce + sealed).decode().rstrip("=")

    def open(self, text: str) -> Position:
        """Returns the position of a cursor. Raises `BadCursor` for a cursor that was not sealed for this user."""
        if len(text) == CURSOR_CHARS and text.isascii():
            try:
                raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
                frame, row = _POSITION.unpack(self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], _ABOUT))
            except (binascii.Error, ValueError, InvalidTag):
                raise BadCursor from None
            return Position(LogOffset(frame), row)
        raise BadCursor


class PlainCursors:
    """Cursors of unrestricted users: positions as text."""

    def seal(self, position: Position) -> str:
        """Returns a cursor that stands for a position."""
        return str(position)

    def open(self, text: str) -> Position:
        """Returns the position of a cursor. Raises `BadCursor`."""
        try:
            return Position.parse(text)
        except ValueError:
            raise BadCursor from None
