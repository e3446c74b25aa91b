"""Dead letters as messages: where they go, and the account of their deaths that RabbitMQ writes as `x-death`.

The account lies in `native["amqp"]["deaths"]`, the last death first, as plain values; one entry counts all deaths of a
message in one queue for one reason. The adapter writes it as the header `x-death`, and puts it there for a message that
a client publishes with that header. `native["amqp"]["alive"]` holds the properties that the message had before.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from gateway.domain.vhosts import local_name
from gateway.port.queues import COPY_KEYS, DEATHS, EXPIRATION, PROPERTIES, PROPERTIES_BEFORE, address_of, routing_of
from store.api.message import COPIES, Message

_NUMBER_MAX: Final = (1 << 63) - 2  # that a client may have written, and one more death is added to
DEATHS_COUNT_MAX: Final = 128  # entries of an account; beyond, the oldest are forgotten
_AMQP: Final = "amqp"
_FIRST: Final = "x-first-death-"


class Reason:
    """The reasons why a message leaves its queue for the dead-letter exchange, by RabbitMQ's names."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


class _Entry(msgspec.Struct):
    """An entry of the account, as far as it is understood."""

    queue: str
    reason: str
    count: Annotated[int, Meta(ge=0, le=_NUMBER_MAX)] = 1
    exchange: str = ""
    time: Annotated[int, Meta(le=_NUMBER_MAX)] = 0
    keys: list[str] = msgspec.field(default_factory=list, name="routing-keys")
    expiration: str | None = msgspec.field(default=None, name="original-expiration")


def dead_letter(
    message: Message, *, queue: str, reason: str, exchange: str, routing_key: str | None, now_ms: int
) -> Message:
    """Returns the message that is published to a dead-letter exchange for one that leaves a queue.

    It has the routing keys that it had unless the queue says another one, and expires no more. `queue` and `exchange`
    are names inside the gateway; the account has them as their virtual host calls them.
    """
    queue = local_name(queue)
    own: dict[str, Any] = dict((message.native or {}).get(_AMQP) or {})
    source, key = routing_of(message.address)
    source = local_name(source)
    entry = {"count": 1, "reason": reason, "queue": queue, "time": now_ms // 1000, "exchange": source}
    entry["routing-keys"] = [key, *own.get(COPY_KEYS, ())]
    expiration = own.pop(EXPIRATION, None)
    if expiration is not None:
        entry["original-expiration"] = expiration
    properties = message.properties
    if DEATHS not in own:
        first = {"reason": reason, "queue": queue, "exchange": source}
        properties = _with_first_death(properties, first)
        own["first_death"] = first
    if routing_key is not None:
        own.pop(COPIES, None)
        own.pop(COPY_KEYS, None)
    elif COPIES in own:
        own[COPIES] = [address_of(exchange, routing_of(address)[1]) for address in own[COPIES]]
    own[DEATHS] = _added(known_deaths(own.get(DEATHS)), entry)
    own[PROPERTIES_BEFORE] = own.get(PROPERTIES_BEFORE) or own.get(PROPERTIES) or b""
    own[PROPERTIES] = b""
    return msgspec.structs.replace(
        message,
        address=address_of(exchange, key if routing_key is None else routing_key),
        retain=False,
        expires_at_ms=None,
        deliver_at_ms=None,
        properties=properties,
        native={**(message.native or {}), _AMQP: own},
    )


def _with_first_death(properties: Sequence[tuple[str, str]], first: dict[str, str]) -> tuple[tuple[str, str], ...]:
    kept = tuple(one for one in properties if not one[0].startswith(_FIRST))
    return (*kept, *((_FIRST + name, text) for name, text in first.items()))


def _added(before: Sequence[dict[str, Any]], entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns an account with one more death: its entry comes first, and counts one more where there is one."""
    kind = entry["queue"], entry["reason"]
    same = [one for one in before if (one["queue"], one["reason"]) == kind]
    others = [one for one in before if (one["queue"], one["reason"]) != kind]
    if same:
        entry = {**same[0], "count": same[0]["count"] + 1}
    return [entry, *others][:DEATHS_COUNT_MAX]


def known_deaths(said: object) -> list[dict[str, Any]]:
    """Returns the entries of an account that are understood: a client may publish whatever it likes as one."""
    found: list[dict[str, Any]] = []
    for one in said if isinstance(said, list) else ():
        try:
            entry = msgspec.convert(one, _Entry)
        except msgspec.ValidationError:
            continue
        plain: dict[str, Any] = {"count": entry.count, "reason": entry.reason, "queue": entry.queue, "time": entry.time}
        plain |= {"exchange": entry.exchange, "routing-keys": entry.keys}
        if entry.expiration is not None:
            plain["original-expiration"] = entry.expiration
        found.append(plain)
    return found


def is_cycle(queue: str, deaths: Iterable[dict[str, Any]]) -> bool:
    """Returns whether a dead letter has come from this queue before, and no client has rejected it since."""
    for death in deaths:
        if death["reason"] == Reason.REJECTED:
            return False
        if death["queue"] == queue:
            return True
    return False
