"""Routing through bound and alternate exchanges equals a plain recursive model of RabbitMQ's."""

from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.api.client import Topic
from gateway.port.queues import address_of, exchange_root
from gateway.publishing.routing.router import Router
from gateway.queues.model.bindings import Binding, Exchange, binding_predicate, patterns
from store.api.message import Message
from tests.support.process.examples import examples

NAMES = ("a", "b.c", "d/e", "amq.topic")
KEYS = ("", "k", "x.y")
PATTERNS = ("", "k", "x.y", "#", "*", "x.*", "*.#")
COPIES: tuple[tuple[str, ...], ...] = ((), ("k",), ("", "x.y"))
HEADERS: tuple[dict[str, str], ...] = ({}, {"h": "1"}, {"h": "2", "g": "1"})
QUEUES = range(500, 503)

names = st.sampled_from(NAMES)
bindings = st.tuples(names, names | st.sampled_from(QUEUES), st.sampled_from(PATTERNS), st.sampled_from(HEADERS))
steps = st.lists(st.tuples(st.sampled_from((True, True, True, False)), bindings), min_size=4, max_size=24)


class Declared(NamedTuple):
    """The exchanges, alternates and bindings that are declared."""

    kinds: dict[str, str]
    alternates: dict[str, str]
    bound: list[Any]


class AllTopics:
    """The topics of a cluster that has all of them."""

    def watch(self, _changed: Any) -> None:
        pass

    def topic(self, name: str) -> Topic:
        return Topic(name=name, queues=(1,), groups=(0,))

    def groups(self) -> tuple[()]:
        return ()


def matches(kind: str, pattern: str, arguments: dict[str, str], key: str, headers: dict[str, str]) -> bool:
    """Returns whether a binding matches, by AMQP 0-9-1, 3.1.3; an empty key has no words, as RabbitMQ splits it."""
    if kind == "direct":
        return pattern == key
    if kind == "topic":
        return words_match(pattern.split(".") if pattern else [], key.split(".") if key else [])
    return kind == "fanout" or all(headers.get(name) == value for name, value in arguments.items())


def words_match(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(words_match(pattern[1:], words[at:]) for at in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and words_match(pattern[1:], words[1:])


def model(world: Declared, start: str, keys: tuple[str, ...], headers: dict[str, str]) -> set[int]:
    kinds, alternates, bound = world
    queues: set[int] = set()
    seen: set[str] = set()

    def visit(exchange: str) -> None:
        if exchange in seen or exchange not in kinds:
            return
        seen.add(exchange)
        targets = [
            target
            for source, target, pattern, arguments in bound
            if source == exchange and any(matches(kinds[exchange], pattern, arguments, key, headers) for key in keys)
        ]
        for target in targets or [alternates.get(exchange, "nowhere")]:
            if isinstance(target, int):
                queues.add(target)
            else:
                visit(target)

    visit(start)
    return queues


@settings(max_examples=examples(300), deadline=None)
@given(
    st.fixed_dictionaries({name: st.sampled_from(("headers", "fanout", "direct", "topic")) for name in NAMES}),
    st.dictionaries(names.filter(lambda name: name != "amq.topic"), names | st.just("nowhere"), min_size=1, max_size=3),
    steps,
    st.sampled_from(COPIES),
)
def test_routing_equals_a_recursive_model(kinds, alternates, changes, copies):
    kinds["amq.topic"] = "topic"
    exchanges = {name: Exchange(name=name, kind=kind) for name, kind in kinds.items()}
    router = Router(AllTopics())
    router.set_exchanges([exchange_root(name) for name in NAMES], (), alternates)
    router.bind("k", 900, key="shared")  # a shared subscription: its address alone counts
    bound: list[Any] = []
    for adding, binding in changes:
        change(router, exchanges, bound, binding, adding=adding)
        for start in NAMES:
            for key in KEYS:
                for headers in HEADERS:
                    address = address_of(start, key)
                    native = {"amqp": {"copies": [address_of(start, one) for one in copies]}}
                    message = Message(address, b"", properties=tuple(headers.items()), native=native)
                    wanted = model(Declared(kinds, alternates, bound), start, (key, *copies), headers) | (
                        {900} if address == "k" else set()
                    )
                    found = router.named_queues(message)
                    assert sorted(found) == sorted(wanted), (start, key, headers)
                    assert all(queue in router.groups for queue in found)


def change(router: Router, exchanges: dict[str, Exchange], bound: list[Any], binding: Any, *, adding: bool) -> None:
    """Binds or unbinds, as the registry does."""
    source, target, key, arguments = binding
    exchange = exchanges[source]
    said = Binding(exchange=source, routing_key=key, arguments=arguments)
    if adding == (binding in bound):
        return
    for nth, pattern in enumerate(patterns(exchange, key)):
        identity = target, said.identity, nth
        if not adding:
            router.unbind(identity)
        elif isinstance(target, int):
            router.bind(pattern, target, binding_predicate(exchange, said), key=identity, exchange=source)
        else:
            router.link(pattern, target, binding_predicate(exchange, said), key=identity, exchange=source)
    if adding:
        bound.append(binding)
    else:
        bound.remove(binding)
