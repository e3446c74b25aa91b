"""The text of an event in the charset that its content type says.

JSON, Protobuf and Avro hold text as Unicode, whatever the charset; in every other form it is bytes, which the content
type labels. Charsets are found by name in a list of our own: Python keeps every name that it is asked for, and some of
its codecs take quadratic time.
"""

import re
from typing import Final

from adapters.cloudevents.attributes import malformed

TEXT: Final = "text"  # in `native["data"]`: the body is text in UTF-8, whatever its content type says
ENCODED: Final = "encoded"  # the body is text in the charset of its content type, and no UTF-8

_CHARSET = re.compile(r""";\s*charset\s*=\s*["']?([\w.:+-]+)""", re.IGNORECASE | re.ASCII)
_KNOWN: Final = frozenset(
    (
        *("us-ascii", "utf-8", "utf8", "utf-16", "utf-16le", "utf-16be", "utf-32", "utf-32le", "utf-32be"),
        *(f"iso-8859-{part}" for part in (*range(1, 12), *range(13, 17))),
        *(f"windows-{page}" for page in range(1250, 1259)),
        *("koi8-r", "koi8-u", "macintosh", "ibm437", "ibm850", "ibm852", "ibm866"),
        *("big5", "euc-jp", "euc-kr", "gb18030", "gb2312", "gbk", "iso-2022-jp", "shift_jis"),
    )
)


def encode_text(text: str, content_type: str | None) -> tuple[bytes, str]:
    """Returns the body of an event's text, and its form: in the charset of its content type, or else in UTF-8.

    Raises `AttributeRefusal` for a text that this charset has not, or where the charset is not known here.
    """
    plain = text.encode("utf-8", "replace")
    charset = _charset_of(content_type)
    if charset is None or (charset not in _KNOWN and text.isascii()):
        return plain, TEXT
    if charset not in _KNOWN:
        raise malformed("data", f"is text of the charset {charset[:32]!r}, which is not known here; use data_base64")
    try:
        body = text.encode(charset)
        faithful = body.decode(charset) == text  # some codecs write one character for another
    except UnicodeError:
        faithful = False
    if not faithful:
        raise malformed("data", f"has characters that the charset {charset!r} has not")
    return body, TEXT if body == plain else ENCODED


def decode_text(body: bytes, form: str | None, content_type: str | None) -> str | None:
    """Returns the text that `encode_text` made a body of; None where the body is none."""
    try:
        if form == TEXT:
            return body.decode()
        if form == ENCODED and (charset := _charset_of(content_type)) in _KNOWN:
            return body.decode(charset or "")
    except UnicodeDecodeError:
        pass
    return None


def _charset_of(content_type: str | None) -> str | None:
    found = _CHARSET.search(content_type) if content_type is not None else None
    return found[1].lower() if found is not None else None
