"""Content-Formats: CoAP's numbers for a media type together with a content coding (RFC 7252, 12.3)."""

from aiocoap.numbers.contentformat import ContentFormat

IDENTITY = "identity"
LINK_FORMAT = int(ContentFormat.LINKFORMAT)
JSON = int(ContentFormat.JSON)
TEXT = int(ContentFormat.TEXT)

# Asking aiocoap's registry for a number that is not there adds it for good, so peers must not be the ones to ask.
_REGISTERED: dict[int, tuple[str, str | None]] = {
    int(entry): (entry.media_type, None if entry.encoding == IDENTITY else entry.encoding)
    for entry in ContentFormat._value2member_map_.values()
    if entry.is_known()
}


def media_type(number: int) -> tuple[str, str | None] | None:
    """Returns the media type and coding that a number stands for; None for one that is not registered."""
    return _REGISTERED.get(number)


def number_of(content_type: str, content_encoding: str | None) -> int | None:
    """Returns the number of a media type and coding; None where there is none.

    White space and case do not count. JSON is always UTF-8, and so is text here, with or without a charset.
    """
    coding = (content_encoding or IDENTITY).lower()
    parts = [part.strip() for part in content_type.lower().split(";")]
    plain = [part for part in parts if part not in {"charset=utf-8", 'charset="utf-8"'}]
    for form in (parts, plain, [*plain, "charset=utf-8"]):
        try:
            return int(ContentFormat.by_media_type(";".join(form), coding))
        except KeyError:
            continue
    return None
