"""The part of subscriptions that is for sinks over HTTP."""

import re
from typing import Final

from gateway.domain.cesql import FilterError
from gateway.port.push import SubscriptionSpec
from gateway.push.context import PushContext
from gateway.push.sender import EventSender
from gateway.push.signing import read_secret
from gateway.push.spec import SubscriptionRecord

HEADERS_MAX: Final = 32  # headers of its own in each request
HEADER_BYTES_MAX: Final = 8_192  # their names and values

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VISIBLE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?|")
_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})
_OURS: Final = re.compile(  # headers that are the gateway's, or the connection's, to say
    r"ce-.*|webhook-.*|content-.*|host|connection|keep-alive|proxy-.*|te|trailer|transfer-encoding|upgrade|expect|"
    r"http2-settings",
    re.IGNORECASE,
)


class HttpKind:
    """See `gateway.push.sender.SinkKind`."""

    ports: Final = {"https": 443, "http": 80}
    settings: Final = frozenset({"method", "headers", "signingsecret"})

    def check(self, spec: SubscriptionSpec) -> None:
        """See `SinkKind`."""
        settings = spec.protocolsettings
        if settings.method not in _METHODS:
            raise FilterError("protocolsettings.method", f"is none of {', '.join(sorted(_METHODS))}")
        if settings.signingsecret is not None:
            read_secret(settings.signingsecret)
        _check_headers(spec)

    def sender(self, record: SubscriptionRecord, context: PushContext) -> EventSender:
        """See `SinkKind`."""
        from gateway.push.http_sender import HttpSender  # noqa: PLC0415 - a client, for those that have a subscription

        return HttpSender(record, context)


def _check_headers(spec: SubscriptionSpec) -> None:
    path = "protocolsettings.headers"
    headers = spec.protocolsettings.headers
    size = sum(len(name) + len(value or "") for name, value in headers.items())
    if len(headers) > HEADERS_MAX or size > HEADER_BYTES_MAX:
        raise FilterError(path, f"has more than {HEADERS_MAX} headers, or {HEADER_BYTES_MAX} bytes")
    for name, value in headers.items():
        if value is None:
            raise FilterError(path, f"{name[:64]!r} has no value; one that is kept is of the same sink")
        if _TOKEN.fullmatch(name) is None or _VISIBLE.fullmatch(value) is None:
            raise FilterError(path, f"{name[:64]!r} is no header, or its value is not visible ASCII")
        if _OURS.fullmatch(name) is not None:
            raise FilterError(path, f"{name[:64]!r} is for the gateway to say")
        if name.lower() == "authorization" and spec.sinkcredential is not None:
            raise FilterError(path, f"{name!r} is what sinkcredential says; leave one of them out")
