"""The publish-subscribe draft (draft-ietf-core-coap-pubsub-21): topic resources, and the states of topic-data.

Of topic-data the other tests show more: `/ps/` is `/t/`.
"""

from typing import Any

import cbor2
import pytest

from adapters.coap.codec.registry import (
    ACCEPT,
    ACK,
    BLOCK1,
    CON,
    CONTENT_FORMAT,
    DELETE,
    FETCH,
    IF_MATCH,
    IPATCH,
    LOCATION_PATH,
    NON,
    OBSERVE,
    POST,
    PUT,
)
from adapters.coap.codec.wire import Packet, encode_uint
from adapters.coap.messages.request import Block
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Call, Outcome, Publish
from gateway.port.kv import GetKey, KeyConflict, ListKeys, RemoveKey, StoreKey
from gateway.port.reads import ListAddresses
from store.api.keys import Entry, Page, Transacted
from store.api.message import Message
from tests.support.coap.coap_driver import Driver, dotted, is_ack, options_of, request

VALUE = Message(address="room2", body=b"21", id="1", content_type="text/plain")
PATCH = 6
TOPIC_FORMAT, CBOR, LINKS = 606, 60, 40
NAME, DATA, RESOURCE_TYPE, FORMAT, TOPIC_TYPE, EXPIRES, SUBSCRIBERS, CHECK, INITIALIZE = range(9)
ROOM2 = {NAME: "room2", RESOURCE_TYPE: "core.ps.data"}


class TopicDriver(Driver):
    """A gateway that has keys, too; `denied` are addresses that may not be published to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.keys: dict[str, tuple[bytes, int]] = {}
        self.revision = 0
        self.denied: frozenset[str] = frozenset()
        self.lists: list[ListKeys] = []
        self.page_size = 1_000

    def complete(self, effects: list[Any], outcome: Outcome | None = None) -> None:
        for effect in effects:
            if isinstance(effect, Publish) and effect.messages[0].address in self.denied:
                told = Outcome(refused={0: Refusal(Cause.FORBIDDEN, "not yours")})
            elif isinstance(effect, Call) and isinstance(effect.request, GetKey | StoreKey | RemoveKey | ListKeys):
                assert effect.request.namespace == "coap-topics"
                told = outcome or self._answer(effect.request)
            else:
                super().complete([effect], outcome)
                continue
            self.complete(list(self.endpoint.completed(effect.token, told, now_ms=self.now_ms)))

    def _answer(self, asked: Any) -> Outcome:
        if isinstance(asked, ListKeys):
            self.lists.append(asked)
            keys = sorted(key for key in self.keys if key > (asked.after or "") and key >= asked.start)
            keys = [key for key in keys if asked.end is None or key < asked.end]
            page = keys[: min(asked.limit, self.page_size)]
            return Outcome(value=Page([self._entry(key) for key in page], self.revision, more=len(page) < len(keys)))
        revision = self.keys[asked.key][1] if asked.key in self.keys else 0
        if isinstance(asked, GetKey):
            return Outcome(value=self._entry(asked.key) if revision else None)
        if not asked.match.holds(revision):
            return Outcome(error=KeyConflict(asked.key, revision))
        self.revision += 1
        if isinstance(asked, StoreKey):
            existed = asked.key in self.keys
            self.keys[asked.key] = asked.value, self.revision
            return Outcome(value=Transacted(self.revision, (existed,)))
        return Outcome(value=self.keys.pop(asked.key, None) is not None)

    def _entry(self, key: str) -> Entry:
        value, revision = self.keys[key]
        return Entry(key, value, revision, revision, 1)

    def create(self, properties: dict[int, Any] = ROOM2, *, mid: int = 1, **parts: Any) -> Packet:
        parts.setdefault("content_format", TOPIC_FORMAT)
        return self.ask("ps", POST, payload=cbor2.dumps(properties), mid=mid, **parts)


def location_of(answer: Packet) -> str:
    return "/".join([value.decode() for number, value in answer.options if number == LOCATION_PATH])


def shown(answer: Packet) -> Any:
    options = dict(answer.options)
    assert options[CONTENT_FORMAT] == encode_uint(TOPIC_FORMAT)
    return cbor2.loads(answer.payload)


def created(properties: dict[int, Any] = ROOM2) -> tuple[TopicDriver, str]:
    """Returns a gateway with a topic, and its path."""
    driver = TopicDriver()
    return driver, location_of(driver.create(properties, mid=0))


# ---- creating (2.4.3)


def test_a_topic_is_created_with_a_place_for_its_data() -> None:
    driver = TopicDriver()
    answer = driver.create()
    assert is_ack(answer, "2.01")
    path = location_of(answer)
    assert path.startswith("ps/$topic/")
    assert shown(answer) == {**ROOM2, DATA: "/ps/room2"}
    assert shown(driver.get(path, mid=2)) == {**ROOM2, DATA: "/ps/room2"}
    assert driver.stored == []


def test_a_topic_may_name_its_data_and_more() -> None:
    given = {**ROOM2, DATA: "/t/plant/line%201", FORMAT: 50, TOPIC_TYPE: "temperature", CHECK: 86_400}
    driver = TopicDriver()
    assert shown(driver.create({**given, SUBSCRIBERS: 100})) == given, "a hint, of which nothing is kept"


def test_the_levels_of_a_name_are_those_of_the_address() -> None:
    driver = TopicDriver()
    answer = driver.create({**ROOM2, NAME: "plant/line 1+2"})
    assert shown(answer)[DATA] == "/ps/plant/line%201%2B2"
    driver.ask(location_of(answer), DELETE, mid=2)
    assert driver.stored[0].address == "plant/line 1%2B2"


@pytest.mark.parametrize("name", ["x" * 255, "\u00e9" * 127, "\u6e29" * 85], ids=["latin", "accents", "hanzi"])
def test_a_name_of_any_characters_is_a_topic_as_long_as_it_may_be(name: str) -> None:
    driver, path = created({**ROOM2, NAME: name})
    assert dotted(driver.get(path, mid=1).code) == "2.05"


def test_a_name_is_used_once() -> None:
    driver, _ = created()
    answer = driver.create({**ROOM2, DATA: "/ps/other"}, mid=2)
    assert is_ack(answer, "4.09", mid=2)
    assert len(driver.keys) == 1


def test_a_topic_may_begin_with_data() -> None:
    driver = TopicDriver()
    answer = driver.create({**ROOM2, FORMAT: 60, INITIALIZE: b"\x80"})
    assert dotted(answer.code) == "2.01"
    assert INITIALIZE not in shown(answer)
    (message,) = driver.stored
    assert (message.address, message.body, message.content_type) == ("room2", b"\x80", "application/cbor")


def test_a_topic_whose_first_data_is_no_event_is_not_created() -> None:
    driver = TopicDriver()
    answer = driver.create({**ROOM2, FORMAT: 65_011, INITIALIZE: b"{}"})
    assert dotted(answer.code) == "4.00"
    assert (driver.keys, driver.stored) == ({}, [])


def test_a_topic_whose_data_may_not_be_published_is_not_created() -> None:
    driver = TopicDriver()
    driver.denied = frozenset({"room2"})
    assert dotted(driver.create({**ROOM2, FORMAT: 60, INITIALIZE: b"\x80"}).code) == "4.03"
    assert driver.keys == {}


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({RESOURCE_TYPE: "core.ps.data"}, b"topic-name"),
        ({NAME: "room2"}, b"resource-type"),
        ({**ROOM2, RESOURCE_TYPE: "core.other"}, b"resource-type"),
        ({**ROOM2, NAME: ""}, b"topic-name"),
        ({**ROOM2, NAME: "x" * 256}, b"topic-name"),
        ({**ROOM2, NAME: 7}, b"topic-name"),
        ({**ROOM2, NAME: "$SYS/a"}, b"topic-name"),
        ({**ROOM2, NAME: "a/../b"}, b"topic-name"),
        ({**ROOM2, DATA: "coap://other/ps/a"}, b"topic-data"),
        ({**ROOM2, DATA: "/other/a"}, b"topic-data"),
        ({**ROOM2, DATA: "/ps/"}, b"topic-data"),
        ({**ROOM2, DATA: "/ps/$topic/a"}, b"topic-data"),
        ({**ROOM2, DATA: "/ps/%FF"}, b"topic-data"),
        ({**ROOM2, FORMAT: 65_536}, b"topic-content-format"),
        ({**ROOM2, FORMAT: "60"}, b"topic-content-format"),
        ({**ROOM2, TOPIC_TYPE: ""}, b"topic-type"),
        ({**ROOM2, EXPIRES: 1_700_000_000}, b"expiration-date: topics do not expire"),
        ({**ROOM2, EXPIRES: cbor2.CBORTag(1, 1_700_000_000)}, b"topics do not expire"),
        ({**ROOM2, SUBSCRIBERS: -1}, b"not read"),
        ({**ROOM2, CHECK: 60}, b"observer-check"),
        ({**ROOM2, INITIALIZE: b"\x80"}, b"topic-content-format"),
        ({**ROOM2, FORMAT: 60, INITIALIZE: "text"}, b"initialize"),
        ({**ROOM2, 9: [1]}, b"9 is the key of no property"),
        ([1], b"no map"),
    ],
)
def test_what_is_no_topic_is_refused(properties: Any, named: bytes) -> None:
    driver = TopicDriver()
    answer = driver.create(properties)
    assert is_ack(answer, "4.00")
    assert named in answer.payload
    assert driver.keys == {}


@pytest.mark.parametrize(
    "payload", [b"", b"\xa1", b"\xbf\xff", b"\xa2\x00\x61a\x00\x61b", b"\xa0\x00", b"\xa1\x20\x01"]
)
def test_what_is_no_cbor_of_ours_is_refused(payload: bytes) -> None:
    driver = TopicDriver()
    assert dotted(driver.ask("ps", POST, payload=payload).code) == "4.00"


# ---- reading (2.4.1, 2.4.2, 2.5.1, 2.5.2)


def test_topics_are_listed() -> None:
    driver, room2 = created()
    room3 = location_of(driver.create({**ROOM2, NAME: "room3", TOPIC_TYPE: "humidity"}, mid=1))
    both = ",".join(f'</{path}>;rt="core.ps.conf"' for path in sorted((room2, room3))).encode()
    for mid, query in enumerate(((), ("rt=core.ps.conf",), ("rt=core.ps.*", "rt=core.ps.conf")), 10):
        answer = driver.get("ps", query=query, mid=mid)
        assert (dotted(answer.code), answer.payload) == ("2.05", both)
        assert options_of(answer)[CONTENT_FORMAT] == encode_uint(LINKS)
    answer = driver.get("ps", query=("rt=core.ps.conf", f"href=/{room3}"), mid=20)
    assert answer.payload == f'</{room3}>;rt="core.ps.conf"'.encode()
    for mid, (properties, found) in enumerate(
        (
            ({NAME: "room2"}, [room2]),
            ({TOPIC_TYPE: "humidity"}, [room3]),
            ({}, [room2, room3]),
            ({NAME: "x"}, []),
            ({SUBSCRIBERS: 100}, []),  # a hint, of which nothing is kept
        ),
        30,
    ):
        answer = driver.ask("ps", FETCH, payload=cbor2.dumps(properties), content_format=TOPIC_FORMAT, mid=mid)
        links = [f'</{path}>;rt="core.ps.conf"' for path in sorted(found)]
        assert (dotted(answer.code), answer.payload) == ("2.05", ",".join(links).encode())


def test_many_topics_come_in_blocks() -> None:
    driver = TopicDriver({"block_size": 64})
    for n in range(8):
        driver.create({**ROOM2, NAME: f"room{n}"}, mid=n)
    first = driver.get("ps", mid=20)
    assert len(first.payload) == 64
    payload, number = first.payload, 1
    while len(payload) < 8 * len('</ps/$topic/0123456789abcdef>;rt="core.ps.conf",') - 1:
        payload += driver.get("ps", mid=20 + number, options=((23, bytes((number << 4 | 2,))),)).payload
        number += 1
    assert payload.count(b"core.ps.conf") == 8


def test_topics_are_looked_for_on_all_pages_of_keys() -> None:
    driver = TopicDriver({"block_size": 1024, "list_max": 5})
    driver.page_size = 2
    paths = [
        location_of(driver.create({**ROOM2, NAME: f"room{n}", TOPIC_TYPE: f"type{n % 4}"}, mid=n)) for n in range(8)
    ]

    def links(properties: dict[int, Any], mid: int) -> tuple[list[str], int]:
        """Returns the paths that are found, and the number of pages."""
        before = len(driver.lists)
        answer = driver.ask("ps", FETCH, payload=cbor2.dumps(properties), content_format=TOPIC_FORMAT, mid=mid)
        found = [link.split(">")[0][2:] for link in answer.payload.decode().split(",") if link]
        return found, len(driver.lists) - before

    for n in range(4):
        assert links({TOPIC_TYPE: f"type{n}"}, 20 + n) == (sorted([paths[n], paths[n + 4]]), 4)
    for n in range(8):
        assert links({NAME: f"room{n}"}, 30 + n) == ([paths[n]], 1), "a name is looked up"
    assert links({NAME: "room1", TOPIC_TYPE: "type2"}, 40) == ([], 1)
    assert links({}, 41) == (sorted(paths)[:5], 3)
    assert driver.get("ps", mid=42).payload.count(b"core.ps.conf") == 5


def test_topic_data_and_collections_are_found_as_before() -> None:
    """(2.3.2, 2.3.4)"""
    driver, _ = created()
    driver.listed = ["room2", "plant/a"]
    for mid, (path, query, payload) in enumerate(
        (
            ("ps", ("rt=core.ps.data",), b'</ps/room2>;rt="core.ps.data",</ps/plant/a>;rt="core.ps.data"'),
            ("t", (), b'</t/room2>;rt="core.ps.data",</t/plant/a>;rt="core.ps.data"'),
            (
                ".well-known/core",
                ("rt=core.ps.coll",),
                b'</t>;rt="core.ps.coll";ct=40,</ps>;rt="core.ps.coll";ct=40',
            ),
        ),
        2,
    ):
        answer = driver.get(path, query=query, mid=mid)
        assert (dotted(answer.code), answer.payload) == ("2.05", payload)
    assert [call for call in driver.calls if isinstance(call, ListAddresses)] == driver.calls


def test_a_topic_is_read_whole_or_in_part() -> None:
    driver, path = created({**ROOM2, FORMAT: 112, TOPIC_TYPE: "temperature"})
    answer = driver.get(path, mid=1, options=((ACCEPT, encode_uint(TOPIC_FORMAT)),))
    whole = {**ROOM2, DATA: "/ps/room2", FORMAT: 112, TOPIC_TYPE: "temperature"}
    assert shown(answer) == whole
    etag = options_of(answer)[4]
    assert is_ack(driver.get(path, mid=2, options=((4, etag),)), "2.03", mid=2)
    part = driver.ask(path, FETCH, payload=cbor2.dumps([DATA, FORMAT, CHECK]), content_format=CBOR, mid=3)
    assert (dotted(part.code), shown(part)) == ("2.05", {DATA: "/ps/room2", FORMAT: 112})
    observed = driver.get(path, mid=4, options=((OBSERVE, b""),))
    assert OBSERVE not in options_of(observed)


def test_what_a_topic_is_not_read_by() -> None:
    driver, path = created()
    assert dotted(driver.get(path, mid=1, options=((ACCEPT, encode_uint(50)),)).code) == "4.06"
    assert dotted(driver.get("ps", mid=2, options=((ACCEPT, encode_uint(TOPIC_FORMAT)),)).code) == "4.06"
    keys = cbor2.dumps([1])
    assert dotted(driver.ask(path, FETCH, payload=keys, content_format=TOPIC_FORMAT, mid=3).code) == "4.15"
    assert dotted(driver.ask(path, FETCH, payload=b"\x01", content_format=CBOR, mid=4).code) == "4.00"
    assert dotted(driver.get("ps/$topic/0123456789abcdef", mid=5).code) == "4.04"
    denied = Outcome(error=Refusal(Cause.FORBIDDEN, "no"))
    assert dotted(driver.exchange(request(path, 1, mid=6), outcome=denied)[0].code) == "4.03"


# ---- changing (2.5.3, 2.5.4)


def test_a_topic_is_replaced_and_changed_in_part() -> None:
    driver, path = created({**ROOM2, FORMAT: 112, TOPIC_TYPE: "temperature"})
    fixed = {**ROOM2, DATA: "/ps/room2"}
    change = {"content_format": TOPIC_FORMAT}
    answer = driver.ask(path, POST, payload=cbor2.dumps({**fixed, TOPIC_TYPE: "humidity"}), mid=1, **change)
    assert (dotted(answer.code), shown(answer)) == ("2.04", {**fixed, TOPIC_TYPE: "humidity"})
    answer = driver.ask(path, IPATCH, payload=cbor2.dumps({FORMAT: 60}), mid=2, **change)
    assert (dotted(answer.code), shown(answer)) == ("2.04", {**fixed, TOPIC_TYPE: "humidity", FORMAT: 60})
    answer = driver.ask(path, PUT, payload=cbor2.dumps({}), mid=3, **change)
    assert (dotted(answer.code), shown(answer)) == ("2.04", fixed)
    assert shown(driver.get(path, mid=4)) == fixed
    assert driver.stored == []


@pytest.mark.parametrize("code", [POST, PUT, IPATCH])
@pytest.mark.parametrize(
    "properties",
    [{NAME: "room3"}, {DATA: "/ps/room3"}, {FORMAT: 60, INITIALIZE: b"\x80"}, {CHECK: 1}, {9: 1}],
)
def test_what_does_not_change_is_refused(code: int, properties: dict[int, Any]) -> None:
    driver, path = created()
    before = dict(driver.keys)
    answer = driver.ask(path, code, payload=cbor2.dumps(properties), content_format=TOPIC_FORMAT)
    assert is_ack(answer, "4.00")
    assert driver.keys == before


def test_a_change_of_what_has_changed_meanwhile_is_a_conflict() -> None:
    driver, path = created()
    (call,) = driver.receive(
        request(path, IPATCH, payload=cbor2.dumps({FORMAT: 60}), content_format=TOPIC_FORMAT, mid=1)
    )
    read = driver._answer(call.request)
    driver.ask(path, IPATCH, payload=cbor2.dumps({FORMAT: 50}), content_format=TOPIC_FORMAT, mid=2)
    driver.complete(list(driver.endpoint.completed(call.token, read, now_ms=driver.now_ms)))
    (answer,) = driver.sent()
    assert is_ack(answer, "4.09")
    assert shown(driver.get(path, mid=3))[FORMAT] == 50


# ---- deleting (2.5.5)


def test_a_deleted_topic_takes_its_data_along() -> None:
    driver, path = created()
    driver.last = VALUE
    driver.get("ps/room2", mid=1, options=((OBSERVE, b""),))
    assert dotted(driver.ask(path, DELETE, mid=2).code) == "2.02"
    (told,) = driver.deliver(driver.stored[-1])
    assert dotted(told.code) == "4.04"
    assert driver.keys == {}
    assert dotted(driver.ask(path, DELETE, mid=3).code) == "4.04"
    assert dotted(driver.create(mid=4).code) == "2.01"


def test_a_topic_whose_data_may_not_be_deleted_stays() -> None:
    driver, path = created()
    driver.denied = frozenset({"room2"})
    assert dotted(driver.ask(path, DELETE).code) == "4.03"
    assert len(driver.keys) == 1


def test_a_topic_that_has_changed_meanwhile_is_not_removed() -> None:
    driver, path = created()
    (call,) = driver.receive(request(path, DELETE, mid=1))
    read = driver._answer(call.request)
    driver.ask(path, IPATCH, payload=cbor2.dumps({FORMAT: 50}), content_format=TOPIC_FORMAT, mid=2)
    driver.complete(list(driver.endpoint.completed(call.token, read, now_ms=driver.now_ms)))
    (answer,) = driver.sent()
    assert is_ack(answer, "4.09", mid=1)
    assert shown(driver.get(path, mid=3))[FORMAT] == 50


def test_a_creation_that_fails_leaves_the_topic_that_has_changed_meanwhile() -> None:
    driver = TopicDriver()
    properties = {**ROOM2, FORMAT: 60, INITIALIZE: b"\x80"}
    (call,) = driver.receive(request("ps", POST, payload=cbor2.dumps(properties), content_format=TOPIC_FORMAT, mid=1))
    (publish,) = driver.endpoint.completed(call.token, driver._answer(call.request), now_ms=driver.now_ms)
    (path,) = [f"ps/$topic/{key}" for key in driver.keys]
    driver.ask(path, IPATCH, payload=cbor2.dumps({FORMAT: 50}), content_format=TOPIC_FORMAT, mid=2)
    driver.denied = frozenset({"room2"})
    driver.complete([publish])
    (answer,) = driver.sent()
    assert is_ack(answer, "4.03", mid=1)
    assert shown(driver.get(path, mid=3))[FORMAT] == 50


# ---- the message layer


def test_a_repeated_request_creates_once_and_gets_the_same_response() -> None:
    driver = TopicDriver()
    answer = driver.create()
    assert driver.create() == answer
    assert driver.revision == 1
    (again,) = driver.exchange(request("ps", POST, type=NON, mid=2, payload=cbor2.dumps({**ROOM2, NAME: "b"})))
    assert (again.type, dotted(again.code)) == (NON, "2.01")


def test_a_slow_creation_is_acknowledged_and_answered_apart() -> None:
    driver = TopicDriver()
    effects = driver.receive(request("ps", POST, payload=cbor2.dumps(ROOM2)))
    (ack,) = driver.tick(1_000)
    assert (ack.type, ack.code) == (ACK, 0)
    driver.complete(effects)
    (answer,) = driver.sent()
    assert (answer.type, dotted(answer.code), answer.token) == (CON, "2.01", b"tk")
    assert driver.endpoint.outstanding == 0


def test_requests_of_several_methods_come_in_blocks_at_once() -> None:
    """A client may look for a topic and create one on the same path."""
    driver = TopicDriver()

    def send(code: int, number: int, properties: dict[int, Any]) -> str:
        body = cbor2.dumps(properties)
        block = (BLOCK1, Block(number, number == 0, 0).encode())
        part = body[number * 16 : number * 16 + 16]
        sent = request("ps", code, mid=code + 100 * number, content_format=TOPIC_FORMAT, options=(block,), payload=part)
        (answer,) = driver.exchange(sent)
        return dotted(answer.code)

    wanted = {NAME: "another-long-room"}
    assert 16 < len(cbor2.dumps(ROOM2)) <= 32
    codes = [send(code, number, asked) for number in (0, 1) for code, asked in ((FETCH, wanted), (POST, ROOM2))]
    assert codes == ["2.31", "2.31", "2.05", "2.01"]
    assert len(driver.keys) == 1


def test_properties_come_in_blocks() -> None:
    """A client with small ones may have no other way."""
    driver = TopicDriver()

    def ask(path: str, code: int, properties: dict[int, Any], mid: int) -> list[Packet]:
        body = cbor2.dumps(properties)
        answers = []
        for at in range(0, len(body), 16):
            block = (BLOCK1, Block(at // 16, at + 16 < len(body), 0).encode())
            sent = request(
                path, code, mid=mid + at, content_format=TOPIC_FORMAT, options=(block,), payload=body[at : at + 16]
            )
            (answer,) = driver.exchange(sent)
            assert driver.exchange(sent) == [answer], "a repeated block is taken once"
            assert (BLOCK1, block[1]) in answer.options
            answers.append(answer)
        return answers

    *continued, answer = ask("ps", POST, ROOM2, 1)
    assert [dotted(one.code) for one in continued] == ["2.31"]
    assert dotted(answer.code) == "2.01"
    path = location_of(answer)
    assert shown(answer)[NAME] == "room2"
    *continued, answer = ask(path, IPATCH, {TOPIC_TYPE: "a type of sixteen characters and more"}, 101)
    assert [dotted(one.code) for one in continued] == ["2.31", "2.31"]
    assert (dotted(answer.code), shown(answer)[TOPIC_TYPE]) == ("2.04", "a type of sixteen characters and more")
    *_, answer = ask(path, PUT, {TOPIC_TYPE: "another type of sixteen characters"}, 201)
    assert (dotted(answer.code), shown(answer)[TOPIC_TYPE]) == ("2.04", "another type of sixteen characters")
    *_, answer = ask("ps", POST, ROOM2, 301)
    assert dotted(answer.code) == "4.09"
    assert len(driver.keys) == 1


@pytest.mark.parametrize(
    ("code", "path", "parts", "answered"),
    [
        (PUT, "ps", {}, "4.05"),
        (DELETE, "ps", {}, "4.05"),
        (PATCH, "ps/$topic/0", {}, "4.05"),
        (IPATCH, "ps/room2", {}, "4.05"),
        (POST, "ps", {"content_format": 60}, "4.15"),
        (POST, "ps", {"options": ((ACCEPT, b"\x32"),)}, "4.06"),
        (POST, "ps", {"options": ((IF_MATCH, b""),)}, "4.02"),
        (POST, "ps", {"options": ((BLOCK1, b"\x08"),)}, "4.00"),  # with more than 16 bytes
    ],
)
def test_what_is_not_done_with_topics(code: int, path: str, parts: dict[str, Any], answered: str) -> None:
    driver = TopicDriver()
    assert dotted(driver.ask(path, code, payload=cbor2.dumps(ROOM2), **parts).code) == answered
    assert driver.keys == {}


@pytest.mark.parametrize(
    ("code", "path", "kind", "answered"),
    [
        (POST, "ps", TOPIC_FORMAT, "4.05"),
        (FETCH, "ps", TOPIC_FORMAT, "4.15"),
        (FETCH, "ps/$topic/0", CBOR, "4.05"),
        (IPATCH, "ps/$topic/0", TOPIC_FORMAT, "4.05"),
    ],
)
def test_without_a_namespace_there_are_no_topics(code: int, path: str, kind: int, answered: str) -> None:
    driver = Driver({"topics_namespace": ""}, last=VALUE, listed=["room2"])
    assert dotted(driver.ask(path, code, content_format=kind, payload=cbor2.dumps(ROOM2)).code) == answered
    assert driver.stored == []
    assert driver.get("ps", mid=2).payload == b'</ps/room2>;rt="core.ps.data"'


# ---- topic-data (3.1 to 3.3)


def test_topic_data_goes_through_the_states_of_the_draft() -> None:
    """Half created, fully created by the first publication, and half created again."""
    driver = Driver()
    observe = ((OBSERVE, b""),)
    assert dotted(driver.get("ps/room2", options=observe).code) == "4.04"
    assert driver.subscribed() == []
    assert dotted(driver.ask("ps/room2", PUT, payload=b"21", mid=2).code) == "2.01"
    driver.last = VALUE
    assert dotted(driver.ask("ps/room2", PUT, payload=b"22", mid=3).code) == "2.04"
    answer = driver.get("ps/room2", mid=4, options=observe)
    assert (dotted(answer.code), OBSERVE in options_of(answer)) == ("2.05", True)
    answers = driver.exchange(request("ps/room2", DELETE, mid=5))
    assert [dotted(one.code) for one in answers] == ["2.02"]
    (told,) = driver.deliver(driver.stored[-1], sub=max(driver.subscriptions))
    assert (dotted(told.code), told.token) == ("4.04", b"tk")
    assert driver.tick(1) == []
    assert driver.subscribed() == []


# ---- values of the namespace that are no topics


@pytest.mark.parametrize(
    "value",
    [
        b"hello",
        b"",
        cbor2.dumps(7),
        cbor2.dumps({}),
        cbor2.dumps({DATA: "/ps/junk", RESOURCE_TYPE: "core.ps.data"}),
        cbor2.dumps({NAME: "junk", RESOURCE_TYPE: "core.ps.data"}),
        cbor2.dumps({NAME: "junk", DATA: "/ps/junk"}),
        cbor2.dumps({NAME: 7, DATA: "/ps/junk", RESOURCE_TYPE: "core.ps.data"}),
        cbor2.dumps({NAME: "junk", DATA: "/ps/%ff", RESOURCE_TYPE: "core.ps.data"}),
        cbor2.dumps({NAME: "junk", DATA: [1], RESOURCE_TYPE: "core.ps.data"}),
    ],
)
def test_a_value_that_is_no_topic_is_left_out_of_links_and_is_an_error_by_itself(value: bytes) -> None:
    driver, path = created()
    driver.keys["junk"] = value, driver.revision
    answer = driver.get("ps", mid=1)
    assert (dotted(answer.code), answer.payload.count(b"<")) == ("2.05", 1)
    assert f"</{path}>".encode() in answer.payload
    one, part = cbor2.dumps({TOPIC_TYPE: "temperature"}), cbor2.dumps([NAME])
    answers = [
        driver.get("ps/$topic/junk", mid=2),
        driver.ask("ps/$topic/junk", FETCH, mid=3, payload=part, content_format=CBOR),
        driver.ask("ps/$topic/junk", PUT, mid=4, payload=one, content_format=TOPIC_FORMAT),
        driver.ask("ps/$topic/junk", IPATCH, mid=5, payload=one, content_format=TOPIC_FORMAT),
        driver.ask("ps/$topic/junk", DELETE, mid=6),
    ]
    assert [dotted(one.code) for one in answers] == ["5.00"] * 5
    assert driver.keys["junk"] == (value, 1)
    assert driver.endpoint.outstanding == 0


def test_a_read_whose_page_cannot_be_taken_holds_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = TopicDriver()
    monkeypatch.setattr(driver.endpoint.reads, "more", lambda _read, _page: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        driver.get("ps")
    assert driver.endpoint.outstanding == 0
