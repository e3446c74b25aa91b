"""Checks of the subscriptions that clients propose."""

from typing import Final

import msgspec

from gateway.domain.address import check_address
from gateway.domain.cesql import FilterError, compile_filters
from gateway.domain.errors import Cause, Refusal
from gateway.domain.filters import check_filter, matches
from gateway.port.push import CONCURRENCY_MAX, ProtocolSettings, SinkCredential, SubscriptionSpec
from gateway.push.guard import SinkGuard
from gateway.push.sender import SinkKind, SinkKinds

ADDRESSES_MAX: Final = 64  # filters of one subscription
TYPES_MAX: Final = 256  # event types that one subscription names
SPEC_BYTES_MAX: Final = 64 << 10  # of a subscription as JSON
CREDENTIAL_CHARS_MAX: Final = 8_192
TIME_S_MIN, TIME_S_MAX = 0.1, 3_600.0  # of pauses and time-outs
RATE_MIN, RATE_MAX = 1 / 3_600, 100_000.0  # deliveries a second
COMMON: Final = frozenset(
    {"mode", "concurrency", "rate", "timeout", "retrymin", "retrymax", "attempts", "deadletter"}
)  # members of `protocolsettings` for every protocol


def check_spec_before(spec: SubscriptionSpec, guard: SinkGuard, kinds: SinkKinds) -> None:
    """Checks a proposal whose secrets may be those of before."""
    credential = spec.sinkcredential
    if credential is not None and credential.secret is None and credential.accesstoken is None:
        spec = msgspec.structs.replace(spec, sinkcredential=None)
    settings = spec.protocolsettings
    if None in settings.headers.values():
        said = {name: value for name, value in settings.headers.items() if value is not None}
        spec = msgspec.structs.replace(spec, protocolsettings=msgspec.structs.replace(settings, headers=said))
    check_spec(spec, guard, kinds)


def check_spec(spec: SubscriptionSpec, guard: SinkGuard, kinds: SinkKinds) -> None:
    """Raises `Refusal` unless a subscription can be as it is proposed; its detail begins with the property."""
    if len(msgspec.json.encode(spec)) > SPEC_BYTES_MAX:
        raise Refusal(Cause.TOO_LARGE, f"a subscription has at most {SPEC_BYTES_MAX} bytes")
    kind = kinds.get(spec.protocol)
    if kind is None:
        raise FilterError("protocol", f"{spec.protocol[:64]!r} is not spoken to sinks; write one of {', '.join(kinds)}")
    guard.parse(spec.sink, kind.ports)
    if spec.source == "":
        raise FilterError("source", "must not be empty")
    if spec.types is not None and not (0 < len(spec.types) <= TYPES_MAX and all(spec.types)):
        raise FilterError("types", f"is not a list of 1 to {TYPES_MAX} types, none of them empty")
    compile_filters(spec.filters)
    _check_config(spec)
    _check_settings(spec.protocolsettings, spec)
    _check_protocol(spec, kind)
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
    if not 1 <= settings.concurrency <= CONCURRENCY_MAX:
        raise FilterError(f"{path}.concurrency", f"is not a number from 1 to {CONCURRENCY_MAX}")
    if settings.rate is not None and not RATE_MIN <= settings.rate <= RATE_MAX:
        raise FilterError(f"{path}.rate", f"is not a number of deliveries a second from 1/3600 to {RATE_MAX:g}")
    for name in ("timeout", "retrymin", "retrymax"):
        if not TIME_S_MIN <= getattr(settings, name) <= TIME_S_MAX:
            raise FilterError(f"{path}.{name}", f"is not a number of seconds from {TIME_S_MIN:g} to {TIME_S_MAX:g}")
    if settings.retrymax < settings.retrymin:
        raise FilterError(f"{path}.retrymax", "is less than retrymin")
    _check_dead_letter(settings, spec)


def _check_protocol(spec: SubscriptionSpec, kind: SinkKind) -> None:
    """Raises `FilterError` for settings of other protocols, and for ones that the protocol itself cannot follow."""
    given, defaults = msgspec.structs.asdict(spec.protocolsettings), msgspec.structs.asdict(ProtocolSettings())
    for name, value in given.items():
        if value != defaults[name] and name not in COMMON and name not in kind.settings:
            raise FilterError(f"protocolsettings.{name}", f"is not for {spec.protocol}; leave it out")
    kind.check(spec)


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
    others = {"PLAIN": ("accesstoken", "accesstokenexpiresutc", "accesstokentype"), "ACCESSTOKEN": ("secret",)}
    for name in others.get(given.credentialtype, ()):
        if getattr(given, name) is not None:
            raise FilterError(f"{path}.{name}", f"is not for type {given.credentialtype}; leave it out")
    if given.credentialtype == "PLAIN":
        if not given.identifier or ":" in given.identifier or given.secret is None:
            raise FilterError(path, "of type PLAIN has an identifier without a colon, and a secret")
    elif given.credentialtype == "ACCESSTOKEN":
        token = given.accesstoken
        if not token or not token.isascii() or " " in token or given.accesstokentype not in {None, "bearer", "Bearer"}:
            raise FilterError(path, "of type ACCESSTOKEN has an accesstoken, to be sent as Bearer")
    else:
        raise FilterError(f"{path}.credentialtype", "is neither PLAIN nor ACCESSTOKEN")
