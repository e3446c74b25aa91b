"""Subscriptions as they are stored, and the checks of those that clients propose.

push/subscriptions/{id}    the subscription, its owner's identity, where it began
push/status/{id}           what the process that runs it has stored of it last
"""

import re
from typing import Any, Final

import msgspec

from gateway.domain.access import Identity
from gateway.domain.address import check_address
from gateway.domain.cesql import EventFilter, FilterError, compile_filters
from gateway.domain.errors import Cause, Refusal
from gateway.domain.filters import check_filter, matches
from gateway.port.push import CONCURRENCY_MAX, ProtocolSettings, SinkCredential, SubscriptionSpec
from gateway.push.guard import SinkGuard
from gateway.push.outbox import Policy
from gateway.push.signing import read_secret
from store.format.frame import QueueNumber

SUBSCRIPTIONS, STATUS = "push/subscriptions", "push/status"  # namespaces of keys

ADDRESSES_MAX: Final = 64  # filters of one subscription
TYPES_MAX: Final = 256  # event types that one subscription names
HEADERS_MAX: Final = 32  # headers of its own in each request
HEADER_BYTES_MAX: Final = 8_192  # their names and values
SPEC_BYTES_MAX: Final = 64 << 10  # of a subscription as JSON
CREDENTIAL_CHARS_MAX: Final = 8_192
ATTEMPTS_DEFAULT: Final = 10  # until an event goes to a dead letter address
TIME_S_MIN, TIME_S_MAX = 0.1, 3_600.0  # of pauses and time-outs
RATE_MIN, RATE_MAX = 1 / 3_600, 100_000.0  # deliveries a second

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VISIBLE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?|")
_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})
_OURS: Final = re.compile(  # headers that are the gateway's, or the connection's, to say
    r"ce-.*|webhook-.*|content-.*|host|connection|keep-alive|proxy-.*|te|trailer|transfer-encoding|upgrade|expect|"
    r"http2-settings",
    re.IGNORECASE,
)


class SubscriptionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored subscription. `start` is its first cursor as offsets; it counts until there is a cursor."""

    id: str
    spec: SubscriptionSpec
    identity: Identity
    start: dict[QueueNumber, int] = {}
    paused: bool = False
    gone: bool = False  # paused because the sink answered 410
    created_ms: int = 0


def check_spec(spec: SubscriptionSpec, guard: SinkGuard) -> None:
    """Raises `Refusal` unless a subscription can be as it is proposed; its detail begins with the property."""
    if len(msgspec.json.encode(spec)) > SPEC_BYTES_MAX:
        raise Refusal(Cause.TOO_LARGE, f"a subscription has at most {SPEC_BYTES_MAX} bytes")
    if spec.protocol != "HTTP":
        raise FilterError("protocol", f"{spec.protocol[:64]!r} is not spoken to sinks; HTTP is")
    guard.parse(spec.sink)
    if spec.source == "":
        raise FilterError("source", "must not be empty")
    if spec.types is not None and not (0 < len(spec.types) <= TYPES_MAX and all(spec.types)):
        raise FilterError("types", f"is not a list of 1 to {TYPES_MAX} types, none of them empty")
    compile_filters(spec.filters)
    _check_config(spec)
    _check_settings(spec.protocolsettings, spec)
    if spec.sinkcredential is not None:
        _check_credential(spec.sinkcredential)


def _check_config(spec: SubscriptionSpec) -> None:
    addresses = spec.config.addresses
    if not 0 < len(addresses) <= ADDRESSES_MAX:
        raise FilterError("config.addresses", f"is not a list of 1 to {ADDRESSES_MAX} filters")
    for index, one in enumerate(addresses):
        try:
            check_filter(one)
        except Refusal as refusal:
            raise FilterError(f"config.addresses[{index}]", refusal.detail) from refusal


def _check_settings(settings: ProtocolSettings, spec: SubscriptionSpec) -> None:
    path = "protocolsettings"
    if settings.method not in _METHODS:
        raise FilterError(f"{path}.method", f"is none of {', '.join(sorted(_METHODS))}")
    if not 1 <= settings.concurrency <= CONCURRENCY_MAX:
        raise FilterError(f"{path}.concurrency", f"is not a number from 1 to {CONCURRENCY_MAX}")
    if settings.rate is not None and not RATE_MIN <= settings.rate <= RATE_MAX:
        raise FilterError(f"{path}.rate", f"is not a number of deliveries a second from 1/3600 to {RATE_MAX:g}")
    for name in ("timeout", "retrymin", "retrymax"):
        if not TIME_S_MIN <= getattr(settings, name) <= TIME_S_MAX:
            raise FilterError(f"{path}.{name}", f"is not a number of seconds from {TIME_S_MIN:g} to {TIME_S_MAX:g}")
    if settings.retrymax < settings.retrymin:
        raise FilterError(f"{path}.retrymax", "is less than retrymin")
    if settings.signingsecret is not None:
        read_secret(settings.signingsecret)
    _check_headers(settings)
    _check_dead_letter(settings, spec)


def _check_headers(settings: ProtocolSettings) -> None:
    path = "protocolsettings.headers"
    headers = settings.headers
    size = sum(len(name) + len(value) for name, value in headers.items())
    if len(headers) > HEADERS_MAX or size > HEADER_BYTES_MAX:
        raise FilterError(path, f"has more than {HEADERS_MAX} headers, or {HEADER_BYTES_MAX} bytes")
    for name, value in headers.items():
        if _TOKEN.fullmatch(name) is None or _VISIBLE.fullmatch(value) is None:
            raise FilterError(path, f"{name[:64]!r} is no header, or its value is not visible ASCII")
        if _OURS.fullmatch(name) is not None:
            raise FilterError(path, f"{name[:64]!r} is for the gateway to say")


def _check_dead_letter(settings: ProtocolSettings, spec: SubscriptionSpec) -> None:
    path = "protocolsettings"
    if settings.deadletter is None:
        if settings.attempts is not None:
            raise FilterError(f"{path}.attempts", "is given with deadletter alone: nothing is thrown away")
        return
    try:
        check_address(settings.deadletter)
    except Refusal as refusal:
        raise FilterError(f"{path}.deadletter", refusal.detail) from refusal
    if any(matches(one, settings.deadletter) for one in spec.config.addresses):
        raise FilterError(f"{path}.deadletter", "is matched by config.addresses: dead letters would be delivered again")
    if settings.attempts is not None and not 1 <= settings.attempts <= 1_000:
        raise FilterError(f"{path}.attempts", "is not a number from 1 to 1000")


def _check_credential(given: SinkCredential) -> None:
    path = "sinkcredential"
    texts = [one for one in (given.identifier, given.secret, given.accesstoken) if one is not None]
    if any(len(one) > CREDENTIAL_CHARS_MAX or not one.isprintable() for one in texts):
        raise FilterError(path, f"has a text of more than {CREDENTIAL_CHARS_MAX} characters, or of control characters")
    if given.credentialtype == "PLAIN":
        if not given.identifier or ":" in given.identifier or given.secret is None:
            raise FilterError(path, "of type PLAIN has an identifier without a colon, and a secret")
    elif given.credentialtype == "ACCESSTOKEN":
        token = given.accesstoken
        if not token or not token.isascii() or " " in token or given.accesstokentype not in {None, "bearer", "Bearer"}:
            raise FilterError(path, "of type ACCESSTOKEN has an accesstoken, to be sent as Bearer")
    else:
        raise FilterError(f"{path}.credentialtype", "is neither PLAIN nor ACCESSTOKEN")


# ---- what a subscription asks for


def filter_of(spec: SubscriptionSpec) -> EventFilter:
    """Returns the filter that `source`, `types` and `filters` are together."""
    passes, source = compile_filters(spec.filters), spec.source
    types = None if spec.types is None else frozenset(spec.types)

    def wanted(event: Any) -> bool:
        if source is not None and event.get("source") != source:
            return False
        return (types is None or event.get("type") in types) and passes(event)

    return wanted


def policy_of(settings: ProtocolSettings) -> Policy:
    """Returns the limits of a subscription's deliveries."""
    attempts = settings.attempts or ATTEMPTS_DEFAULT
    return Policy(
        concurrency=settings.concurrency,
        rate_per_s=settings.rate,
        retry_min_s=settings.retrymin,
        retry_max_s=settings.retrymax,
        attempts_max=None if settings.deadletter is None else attempts,
    )


# ---- secrets


def without_secrets(spec: SubscriptionSpec) -> SubscriptionSpec:
    """Returns a subscription as it may be shown."""
    credential = spec.sinkcredential
    if credential is not None:
        credential = msgspec.structs.replace(credential, secret=None, accesstoken=None)
    settings = msgspec.structs.replace(spec.protocolsettings, signingsecret=None)
    return msgspec.structs.replace(spec, sinkcredential=credential, protocolsettings=settings)


def with_secrets(spec: SubscriptionSpec, before: SubscriptionSpec) -> SubscriptionSpec:
    """Returns a subscription with the secrets of before where it leaves them out and its sink is the same."""
    if spec.sink != before.sink:
        return spec
    credential, known = spec.sinkcredential, before.sinkcredential
    if credential is not None and known is not None and credential.credentialtype == known.credentialtype:
        credential = msgspec.structs.replace(
            credential,
            secret=known.secret if credential.secret is None else credential.secret,
            accesstoken=known.accesstoken if credential.accesstoken is None else credential.accesstoken,
        )
    settings, secret = spec.protocolsettings, before.protocolsettings.signingsecret
    if settings.signingsecret is None and secret is not None:
        settings = msgspec.structs.replace(settings, signingsecret=secret)
    return msgspec.structs.replace(spec, sinkcredential=credential, protocolsettings=settings)
