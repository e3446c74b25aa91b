"""Sinks over HTTP: the HTTP binding of CloudEvents, and HTTP 1.1 Web Hooks for Event Delivery."""

from base64 import b64encode
from functools import cache
from importlib.metadata import version
from typing import Final

from gateway.push.client import SinkAnswer, SinkClient
from gateway.push.context import PushContext
from gateway.push.guard import SinkRefused, SinkUnreachable
from gateway.push.outbox import Attempt, Failure
from gateway.push.sender import Consent
from gateway.push.signing import read_secret, signed
from gateway.push.spec import SubscriptionRecord

CONSENT_TIMEOUT_S: Final = 15.0
# The sink has looked at this event and does not want it; another one may well be taken.
EVENT_FAULTS: Final = frozenset({400, 406, 413, 415, 422, 431})
GONE: Final = 410  # the sink wants nothing more (HTTP 1.1 Web Hooks for Event Delivery, 2.2)


class HttpSender:
    """See `gateway.push.sender.EventSender`."""

    def __init__(self, record: SubscriptionRecord, context: PushContext) -> None:
        self._id = record.id
        self._spec = spec = record.spec
        self._context = context
        self._headers = [(b"webhook-request-origin", context.origin.encode()), *_own_headers(record)]
        if all(name.lower() != b"user-agent" for name, _ in self._headers):  # some sinks refuse requests without it
            self._headers.append((b"user-agent", _agent()))
        settings = spec.protocolsettings
        secret, mode = settings.signingsecret, settings.mode
        self._signing_key = None if secret is None else read_secret(secret)
        self._structured = mode == "structured" or (mode is None and secret is not None)
        self._client = SinkClient(context.guard, connections_max=settings.concurrency, tls=context.trust.http)

    async def consent(self) -> Consent:
        """Asks the sink (Web Hooks, 4), unless the configuration turns that off."""
        if self._context.config.validation == "off":
            return Consent("")
        rate = self._spec.protocolsettings.rate
        headers = [*self._headers, (b"content-length", b"0")]
        if rate is not None:
            headers.append((b"webhook-request-rate", b"%d" % max(int(rate * 60), 1)))
        try:
            answer = await self._client.request("OPTIONS", self._spec.sink, headers, b"", timeout_s=CONSENT_TIMEOUT_S)
        except (SinkUnreachable, SinkRefused) as error:
            return Consent(f"the sink was not asked for its consent: {error}")
        allowed = answer.header(b"webhook-allowed-origin")
        if allowed is None or allowed.lower() not in {"*", self._context.origin.lower()}:  # names of DNS
            return Consent(
                f"the sink has not consented: its WebHook-Allowed-Origin is not {self._context.origin!r} or *"
            )
        return Consent("", _allowed_rate_per_s(answer))

    async def send(self, one: Attempt) -> Failure | None:
        """See `EventSender`."""
        context, settings = self._context, self._spec.protocolsettings
        request = context.codec.sink_request(one.message, structured=self._structured)
        headers = [*request.headers, *self._headers]
        if self._signing_key is not None:
            id_ = f"{self._id}.{one.position}"
            headers += signed(self._signing_key, id_, context.now_ms() // 1_000, request.body)
        try:
            answer = await self._client.request(
                settings.method, self._spec.sink, headers, request.body, timeout_s=settings.timeout
            )
        except (SinkUnreachable, SinkRefused) as error:
            return Failure(error=str(error))
        status = answer.status
        if 200 <= status < 300:
            return None
        fault = status in EVENT_FAULTS
        what = f"the sink answered {status}"
        if 300 <= status < 400:
            what += ": redirects are not followed"
        return Failure(
            error=what, of_event=fault, final=fault, gone=status == GONE, retry_after_ms=answer.retry_after_ms
        )

    async def close(self) -> None:
        """See `EventSender`."""
        await self._client.close()


@cache
def _agent() -> bytes:
    """Returns the product that sends the requests (RFC 9110, 10.1.5)."""
    return f"headgate/{version('headgate')}".encode()


def _allowed_rate_per_s(answer: SinkAnswer) -> float | None:
    text = answer.header(b"webhook-allowed-rate") or ""
    return int(text) / 60 if text.isascii() and text.isdigit() and len(text) <= 9 and int(text) else None


def _own_headers(record: SubscriptionRecord) -> list[tuple[bytes, bytes]]:
    """Returns the headers of every request of a subscription."""
    spec = record.spec
    headers = [(name.encode(), (value or "").encode()) for name, value in spec.protocolsettings.headers.items()]
    credential = spec.sinkcredential
    if credential is not None and credential.credentialtype == "PLAIN":
        pair = f"{credential.identifier}:{credential.secret}".encode()
        headers.append((b"authorization", b"Basic " + b64encode(pair)))
    elif credential is not None:
        headers.append((b"authorization", b"Bearer " + (credential.accesstoken or "").encode()))
    return headers
