"""Preferences of a request: the header Prefer (RFC 7240)."""

from adapters.http.wire.request import HttpRequest


def preference(request: HttpRequest, wanted: str) -> str | None:
    """Returns the value of a preference, "" where it has none; None where the request does not have it.

    Of a preference that is given more than once the first counts; parameters of others say nothing (RFC 7240, 2).
    """
    for given in (request.get(b"prefer") or "").split(","):
        name, _, value = given.partition(";")[0].partition("=")
        if name.strip().lower() == wanted:
            return value.strip().strip('"')
    return None
