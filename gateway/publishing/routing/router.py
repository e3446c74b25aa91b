"""The router: from an address to its topic, its queue, and the named queues that want it too.

Everything that depends on the address alone is computed once and kept in a `Route`; each message then costs one
dictionary look-up and one remainder.

A message's queue is picked by the hash of its key, or of its device where it has no key: so one key's messages are in
order, and one device's, for as long as the same queues are open. A topic can prefer its proxy's zone for messages
without a key; then a device's messages are in order for as long as it publishes in one zone, and no master there moves.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from controller.api.client import ControllerClient, Group, Topic
from gateway.domain.address import address_hash, check_address, hash64
from gateway.domain.errors import Cause, Refusal
from gateway.domain.filters import FilterTrie
from gateway.domain.vhosts import VHOST_ROOT, said
from gateway.port.queues import address_of, exchange_root, exchange_root_of, routing_of
from gateway.publishing.routing.exchange_graph import Edge, ExchangeNode, GraphWalk, Predicate, make_graph
from gateway.publishing.routing.hash_choice import HashTarget
from gateway.publishing.routing.lanes import Lanes
from gateway.publishing.routing.length_gates import LengthGate
from gateway.publishing.routing.topic_settings import is_async, is_compacted, prefers_zone
from store.api.log import IndexKind
from store.api.message import COPIES, Message
from store.format.frame import ROW_INDEX_ADDRESS, ROW_INDEX_KEY, ROW_TOMBSTONE

ROUTES_MAX = 1 << 17  # addresses remembered; beyond, all are forgotten and learned again
HASHES_MAX = 1 << 17
MANY_COUNT_MAX = 8  # '#' in one pattern: each multiplies the cost of a match
REMEMBERED_LENGTH_MAX = 256  # longer texts are looked at each time: a table is bounded in bytes too

AMQP_TOPICS = ("$amqp", VHOST_ROOT)  # of messages for exchanges other than amq.topic of "/"
INDEX_FLAGS = {"key": ROW_INDEX_KEY, "address": ROW_INDEX_ADDRESS}  # the names in a topic's "index"
ROOT_TOPIC = "/"  # the topic of addresses whose first level is empty

SPREAD = -1  # no store group has this number

_AMQP: Final = "amqp"  # in `Message.native`
_NO_ALTERNATES: Final[Mapping[str, str]] = MappingProxyType({})


class UnknownTopicError(Exception):
    """Raised for an address whose topic does not exist yet."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic


class TopicRule(NamedTuple):
    """A rule of the configuration: addresses that `pattern` matches belong to `topic`."""

    pattern: str
    topic: str


class _Binding(NamedTuple):
    target: int | str  # a named queue's number, or the name of an exchange
    group: int
    predicate: Predicate | None
    key: Hashable
    exchange: str | None  # the source of this binding; None: no exchange's


class Route(NamedTuple):
    """All that is known of an address."""

    topic: str
    queues: tuple[int, ...]  # the queues of the topic that are written to
    address_hash: int
    extra: tuple[int, ...]  # named queues that take every message of this address
    asking: tuple[tuple[int, Predicate], ...]  # named queues that look at the message first
    row_flags: int = 0  # the indexes of its records: in every row that is not ROW_EXTRA
    empty_flags: int = 0  # the same of a message without a body, which in a compacted topic ends its key
    relaxed: bool = False  # acknowledged before it is on disk
    group: int = 0  # in which all of `queues` lie; SPREAD: in several
    near: tuple[int, ...] = ()  # those of `queues` for messages without a key

    def named(self, message: Message) -> Sequence[int]:
        """Returns the named queues that a message goes to by its address."""
        if not self.asking:
            return self.extra
        return (*self.extra, *dict.fromkeys(queue for queue, wants in self.asking if wants(message)))


class Router:
    """Routes of this process. Not thread-safe: it belongs to the event loop."""

    def __init__(
        self,
        controller: ControllerClient,
        rules: Sequence[TopicRule] = (),
        *,
        index: Sequence[str] = (),
        zone: str = "",
    ) -> None:
        """Takes the `index` of topics whose configuration says none: "key", "address".

        `zone` is where this process runs, "" where that does not matter.
        """
        self._controller = controller
        self._zone = zone
        self._index = tuple(index)
        self.met: Callable[[str], object] = lambda _address: None  # told of addresses that were not remembered
        self._rules: FilterTrie[int] = FilterTrie()
        self._rule_topics = [rule.topic for rule in rules]
        self._rule_patterns = [rule.pattern for rule in rules]
        for number, rule in enumerate(rules):
            self._rules.add(rule.pattern, number)
        self._bindings: FilterTrie[_Binding] = FilterTrie()
        self._bound: dict[Hashable, tuple[str, _Binding]] = {}
        self._exchanges: frozenset[str] = frozenset()
        self._internal: frozenset[str] = frozenset()
        self._alternates = _NO_ALTERNATES
        self._fallbacks: frozenset[str] = frozenset()  # the exchanges that are alternates
        self._linked: Counter[str] = Counter()  # links by the exchange they lead to
        self.routes: dict[str, Route] = {}  # read by the ingest loop; filled by `resolve`
        self.hashes: dict[str, int] = {}  # of ordering keys; filled by `key_hash`
        self.gates: dict[int, LengthGate] = {}  # of named queues that take nothing more when they are full
        self.lanes = Lanes()  # of named queues with priorities
        self.groups: dict[int, int] = {}  # of every queue in a route: the store group that it lies in
        controller.watch(self._forget_all)

    def group_of(self, queue: int) -> int | None:
        """Returns the store group that a queue lies in; None for a queue that there is not."""
        return self._controller.group_of_queue(queue)

    def topic_of(self, address: str) -> str:
        """Returns the topic of an address: by the first rule of the configuration, else its first level."""
        found = self._rules.match(address)
        if found:
            return self._rule_topics[min(found)]
        return address.split("/", 1)[0] or ROOT_TOPIC

    def topics_of(self, pattern: str) -> Sequence[str] | None:
        """Returns the topics that addresses of a filter can belong to; None when that may be any."""
        first = pattern.split("/", 1)[0]
        if first in {"+", "#"} or len(self._rules):
            return None
        return [first or ROOT_TOPIC]

    def queues_at(self, address: str) -> Sequence[int] | None:
        """Returns the queues that messages at an address can be in, closed ones too; None where that may be any.

        That is so where there are rules, which may have been others when the messages were stored.
        """
        if len(self._rules):
            return None
        topic = self._controller.topic(self.topic_of(address))
        return None if topic is None else list(topic.queues) or None

    def patterns_of(self, topic: str) -> Sequence[str]:
        """Returns filters that together match every address that can belong to a topic."""
        found = [pattern for pattern, name in zip(self._rule_patterns, self._rule_topics, strict=True) if name == topic]
        return [*found, "/#" if topic == ROOT_TOPIC else f"{topic}/#"]

    def resolve(self, address: str, *, inside: bool = False) -> Route:
        """Returns the route of an address; `inside`, of the gateway's own messages to an internal exchange.

        Raises `Refusal` for an address that nothing may be published to, `UnknownTopicError` where a topic would have
        to be created first.
        """
        route = self.routes.get(address)
        if route is not None:
            return route
        check_address(address)
        internal = address.startswith("$") and self._check_reserved(address, inside=inside)
        name = self.topic_of(address)
        topic = self._controller.topic(name)
        if topic is None:
            raise UnknownTopicError(name)
        self.groups.update(zip(topic.queues, topic.groups, strict=True))
        extra, asking = self._named([address])
        groups = {self.groups[queue] for queue in topic.open}
        route = Route(
            topic=topic.name,  # one object for all of its addresses: ingest looks whether it is the same
            queues=topic.open,
            address_hash=address_hash(address),
            extra=extra,
            asking=asking,
            row_flags=(flags := self._row_flags(topic)),
            empty_flags=flags | (ROW_TOMBSTONE if is_compacted(topic.config) else 0),
            relaxed=is_async(topic.config),
            group=groups.pop() if len(groups) == 1 else SPREAD,
            near=self._near(topic),
        )
        self.met(address)
        if len(address) <= REMEMBERED_LENGTH_MAX and not internal:
            if len(self.routes) >= ROUTES_MAX:
                self.routes.clear()
            self.routes[address] = route
        return route

    def named(self, message: Message, route: Route) -> Sequence[int]:
        """Returns the named queues that a message goes to, by the addresses of its copies too; `route` is its own.

        Of a queue with priorities it is the lane.
        """
        native = message.native
        own = None if native is None else native.get(_AMQP)
        if own is None or not own.get(COPIES):
            found = route.named(message)
        else:
            extra, asking = self._named([message.address, *own[COPIES]])
            found = (*extra, *dict.fromkeys(queue for queue, wants in asking if wants(message)))
        if not self.lanes:
            return found
        picked = self.lanes.pick(found, message)
        self.groups.update([(lane, self.groups[queue]) for lane, queue in zip(picked, found, strict=True)])
        return picked

    def _named(self, addresses: Sequence[str]) -> tuple[tuple[int, ...], tuple[tuple[int, Predicate], ...]]:
        """Returns the named queues that take every message of some addresses, and those that look at it first.

        The first address is where the messages are published; the others have the same exchange.
        """
        bindings = self._match(addresses)
        chained: GraphWalk | None = None
        if self._linked or self._alternates:
            start, keys = routing_of(addresses[0])[0], [routing_of(address)[1] for address in addresses]
            found = {start: bindings}

            def node_of(exchange: str) -> ExchangeNode | None:
                if exchange_root(exchange) not in self._exchanges:
                    return None
                if exchange not in found:
                    found[exchange] = self._match([address_of(exchange, key) for key in keys])
                edges = [Edge(b.target, b.predicate) for b in found[exchange] if b.exchange == exchange]
                return ExchangeNode(edges, self._alternates.get(exchange))

            chained = GraphWalk(start, make_graph(start, node_of))
            self._note_groups(b for some in found.values() for b in some)
            bindings = [b for b in bindings if b.exchange is None]
        self._note_groups(bindings)
        every = {b.target: None for b in bindings if b.predicate is None and isinstance(b.target, int)}
        if chained is not None:
            every.update(dict.fromkeys(chained.certain))
        asking = [
            (b.target, b.predicate)
            for b in bindings
            if b.predicate is not None and isinstance(b.target, int) and b.target not in every
        ]
        return tuple(every), (*asking, *(() if chained is None else chained.asking))

    def _match(self, addresses: Sequence[str]) -> Collection[_Binding]:
        """Returns the bindings that match any of some addresses; only an exchange's own match the second and others."""
        first, *others = addresses
        if not others:
            return self._bindings.match(first)
        found = dict.fromkeys(self._bindings.match(first))
        for address in others:
            for binding in self._bindings.match(address):
                wants = binding.predicate
                if binding.exchange is not None and not isinstance(wants, HashTarget):  # hashes the first key alone
                    found[binding if wants is None else binding._replace(predicate=partial(_at, address, wants))] = None
        return list(found)

    def _note_groups(self, bindings: Iterable[_Binding]) -> None:
        self.groups.update([(b.target, b.group) for b in bindings if isinstance(b.target, int)])

    def _near(self, topic: Topic) -> tuple[int, ...]:
        """Returns the queues for messages without a key: this zone's, where the topic prefers them and has some."""
        if not self._zone or not prefers_zone(topic.config):
            return topic.open
        here = {group.number for group in self._controller.groups() if _zone_of(group) == self._zone}
        return tuple([queue for queue in topic.open if self.groups[queue] in here]) or topic.open

    def indexed(self, kind: IndexKind, text: str) -> bool:
        """Returns whether messages can be found by a key or an address; by their ids they always can."""
        if kind is IndexKind.ID:
            return True
        if kind is IndexKind.KEY:  # its topic is unknown, and need not be there yet
            topics = self._controller.topics()
            return "key" in self._index or any(self._row_flags(topic) & ROW_INDEX_KEY for topic in topics)
        topic = self._controller.topic(self.topic_of(text))
        return topic is None or bool(self._row_flags(topic) & ROW_INDEX_ADDRESS)

    def _row_flags(self, topic: Topic) -> int:
        flags = 0
        for name in topic.config.get("index", self._index):
            flags |= INDEX_FLAGS.get(name, 0)
        return flags

    def key_hash(self, key: str) -> int:
        """Returns the hash of an ordering key, remembered."""
        found = self.hashes.get(key)
        if found is None:
            found = hash64(key)
            if len(key) <= REMEMBERED_LENGTH_MAX:
                if len(self.hashes) >= HASHES_MAX:
                    self.hashes.clear()
                self.hashes[key] = found
        return found

    def named_only(self, message: Message) -> tuple[Sequence[int], int]:
        """Returns the named queues that a message goes to, and its address's hash; the address needs no topic.

        Raises `Refusal` as `resolve` does.
        """
        address = message.address
        route = self.routes.get(address)
        if route is None:
            route = self.without_topic(address)
        return self.named(message, route), route.address_hash

    def without_topic(self, address: str, *, inside: bool = False) -> Route:
        """Returns the route of an address to named queues alone. Raises `Refusal` as `resolve` does."""
        check_address(address)
        if address.startswith("$"):
            self._check_reserved(address, inside=inside)
        return Route("", (), address_hash(address), *self._named([address]))

    def named_queues(self, message: Message) -> list[int]:
        """Returns the named queues a message would be put in. Raises as `resolve` does."""
        return list(self.named(message, self.resolve(message.address)))

    def unrouted(self, messages: Sequence[Message], indexes: Iterable[int]) -> tuple[int, ...]:
        """Returns those of some messages, by their indexes, that are for no named queue."""

        def is_routed(message: Message) -> bool:
            try:
                return bool(self.named_queues(message))
            except (Refusal, UnknownTopicError):  # it is refused
                return False

        return tuple([index for index in indexes if not is_routed(messages[index])])

    def bind(
        self,
        pattern: str,
        queue: int,
        predicate: Predicate | None = None,
        *,
        key: Hashable,
        group: int = 0,
        exchange: str | None = None,
    ) -> None:
        """Routes messages of matching addresses to a named queue of a group too; `unbind` takes the `key`.

        `exchange` is the one whose binding this is: it also takes messages that come to that exchange from other
        exchanges. Raises `Refusal` (PRECONDITION) for a pattern that would be too dear to match.
        """
        self._bind(pattern, _Binding(queue, group, predicate, key, exchange))

    def link(
        self, pattern: str, target: str, predicate: Predicate | None = None, *, key: Hashable, exchange: str
    ) -> None:
        """Routes messages of matching addresses of `exchange` through the exchange `target` too.

        Raises as `bind` does.
        """
        self._bind(pattern, _Binding(target, 0, predicate, key, exchange))
        self._linked[target] += 1
        self.routes.clear()

    def _bind(self, pattern: str, binding: _Binding) -> None:
        check_binding_pattern(pattern)
        self.unbind(binding.key)
        self._bound[binding.key] = (pattern, binding)
        self._bindings.add(pattern, binding)
        self._forget(pattern)

    def unbind(self, key: Hashable) -> None:
        """Ends a binding or a link; an unknown key changes nothing."""
        found = self._bound.pop(key, None)
        if found is None:
            return
        self._bindings.discard(*found)
        target = found[1].target
        if isinstance(target, str):
            self._linked[target] -= 1
            if not self._linked[target]:
                del self._linked[target]
            self.routes.clear()
        self._forget(found[0])

    def _forget_all(self) -> None:
        self.routes.clear()
        self.groups.clear()

    def set_exchanges(
        self, names: Collection[str], internal: Collection[str] = (), alternates: Mapping[str, str] = _NO_ALTERNATES
    ) -> None:
        """Sets the exchanges that exist, by their roots; publishing to any other, or to an internal one, is refused.

        `alternates` are the names of the exchanges for messages that an exchange cannot route, by its name.
        """
        self._exchanges, self._internal = frozenset(names), frozenset(internal)
        if self._linked or self._alternates or alternates:
            self.routes.clear()  # an exchange on the way of any address may be another one now
        self._alternates, self._fallbacks = alternates, frozenset(alternates.values())
        for address in [address for address in self.routes if address.startswith(AMQP_TOPICS)]:
            del self.routes[address]

    def _forget(self, pattern: str) -> None:
        """Forgets the routes that a change of a binding may concern."""
        levels = pattern.split("/")
        if "+" in levels or "#" in levels or self._reached_by_others(pattern):
            self.routes.clear()
        else:
            self.routes.pop(pattern, None)

    def _reached_by_others(self, address: str) -> bool:
        """Returns whether the exchange of an address also routes messages of other addresses."""
        if not self._linked and not self._alternates:
            return False
        exchange = routing_of(address)[0]
        return exchange in self._linked or exchange in self._fallbacks

    def _check_reserved(self, address: str, *, inside: bool) -> bool:
        """Returns whether only the gateway itself publishes to an address. Raises `Refusal`."""
        root = exchange_root_of(address)
        if root is None:
            raise Refusal(Cause.FORBIDDEN, f"{address.split('/', 1)[0]!r} is not an address to publish to")
        if root not in self._exchanges:
            raise Refusal(Cause.NOT_FOUND, f"no exchange {said(routing_of(address)[0])}")
        internal = root in self._internal
        if internal and not inside:
            name = said(routing_of(address)[0])
            raise Refusal(Cause.FORBIDDEN, f"cannot publish to internal exchange {name}")
        return internal


def _at(address: str, wants: Predicate, message: Message) -> bool:
    """Asks a binding for a message as if it had been published to another address."""
    return wants(msgspec.structs.replace(message, address=address))


def check_binding_pattern(pattern: str) -> None:
    """Raises `Refusal` (PRECONDITION) for a pattern that would be too dear to match."""
    if pattern.split("/").count("#") > MANY_COUNT_MAX:
        raise Refusal(Cause.PRECONDITION, f"a pattern has at most {MANY_COUNT_MAX} '#'")


def _zone_of(group: Group) -> str | None:
    """Returns the zone of a group's master; None while there is no master."""
    master = None if group.master is None else group.replica(group.master)
    return None if master is None else master.zone
