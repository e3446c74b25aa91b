"""Subscriptions as they are stored, and the settings of their deliveries.

push/subscriptions/{id}    the subscription, its owner's identity, where it began
push/status/{id}           the last state stored by the process that runs it
"""

from typing import Any, Final

import msgspec

from gateway.domain.access import Identity
from gateway.domain.cesql import EventFilter, compile_filters
from gateway.port.push import ProtocolSettings, SubscriptionSpec
from gateway.push.outbox import Policy
from store.format.frame import QueueNumber

SUBSCRIPTIONS, STATUS = "push/subscriptions", "push/status"  # namespaces of keys

SINK_GONE: Final = "the sink answered 410: it wants nothing more"
SECRET_OF: Final = {"PLAIN": "secret", "ACCESSTOKEN": "accesstoken"}  # the secret of each type of credential
ATTEMPTS_DEFAULT: Final = 10  # until an event goes to a dead letter address


class SubscriptionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored subscription. `start` is its first cursor as offsets; it counts until there is a cursor."""

    id: str
    spec: SubscriptionSpec
    identity: Identity
    start: dict[QueueNumber, int] = {}
    paused: bool = False
    gone: bool = False  # paused because the sink answered 410
    created_ms: int = 0


# ---- the settings of a subscription


def filter_of(spec: SubscriptionSpec) -> EventFilter:
    """Returns the filter that `source`, `types` and `filters` are together."""
    passes, source = compile_filters(spec.filters, stored=True), spec.source
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
    headers = dict.fromkeys(spec.protocolsettings.headers)
    settings = msgspec.structs.replace(spec.protocolsettings, signingsecret=None, headers=headers)
    return msgspec.structs.replace(spec, sinkcredential=credential, protocolsettings=settings)


def with_secrets(spec: SubscriptionSpec, before: SubscriptionSpec) -> SubscriptionSpec:
    """Returns a changed subscription with the secrets that it had before, where the change names none.

    Another sink gets none of them.
    """
    if spec.sink != before.sink:
        return spec
    credential, known = spec.sinkcredential, before.sinkcredential
    if credential is not None and known is not None and credential.credentialtype == known.credentialtype:
        member = SECRET_OF.get(credential.credentialtype)
        if member is not None and getattr(credential, member) is None:
            credential = msgspec.structs.replace(credential, **{member: getattr(known, member)})
    settings, secret = spec.protocolsettings, before.protocolsettings.signingsecret
    if settings.signingsecret is None and secret is not None:
        settings = msgspec.structs.replace(settings, signingsecret=secret)
    if None in settings.headers.values():
        values = {name.lower(): value for name, value in before.protocolsettings.headers.items()}
        kept = {n: values.get(n.lower()) if value is None else value for n, value in settings.headers.items()}
        settings = msgspec.structs.replace(settings, headers=kept)
    return msgspec.structs.replace(spec, sinkcredential=credential, protocolsettings=settings)
