"""Addresses that a message names besides its own: where answers go, and the address of its subject.

The client that answers a request publishes by its own rights, to an address that the requester has chosen. So a
requester has to be allowed to read there, or it would have others write where it may not write itself. Readers of
events take `subject` for where an event was published. So it has to be an address that its publisher may publish to,
where it is not the message's own. Addresses that a message is routed to queues by, besides its own, are published to.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.domain.address import address_of_subject
from gateway.domain.vhosts import in_vhost, queue_address, vhost_of_address
from store.api.message import COPIES, EVENT, REPLY_QUEUE, SUBJECT, Message

if TYPE_CHECKING:
    from gateway.domain.access_settings import Action

_AMQP = "amqp"


def denied_name(message: Message, may: Callable[["Action", str], bool]) -> tuple["Action", str] | None:
    """Returns an action that a message's publisher may not do at an address that it names, and the address; or None."""
    reply_to, native = message.reply_to, message.native
    if reply_to is not None and not may("subscribe", reply_to):
        return "subscribe", reply_to
    if native is None:
        return None
    amqp = native.get(_AMQP)
    if amqp is not None and (queue := amqp.get(REPLY_QUEUE)):
        where = queue_address(in_vhost(vhost_of_address(message.address), queue))
        if not may("subscribe", where):
            return "subscribe", where
    for address in () if amqp is None else amqp.get(COPIES, ()):
        if not may("publish", address):
            return "publish", address
    event = native.get(EVENT) or amqp  # readers by AMQP see headers of no event, and may take them for one
    if event is not None and (subject := event.get(SUBJECT)) is not None and subject != message.address:
        address = address_of_subject(subject)
        if address != message.address and not may("publish", address):
            return "publish", address
    return None
