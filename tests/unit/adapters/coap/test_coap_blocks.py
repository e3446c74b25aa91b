"""Bodies in blocks (RFC 7959)."""

from typing import Any

import pytest

from adapters.coap.codec.registry import (
    ACK,
    BLOCK1,
    BLOCK2,
    CON,
    CONTENT_FORMAT,
    ETAG,
    GET,
    MAX_AGE,
    NON,
    PUT,
    SIZE1,
    SIZE2,
)
from adapters.coap.codec.wire import Packet, encode_uint, read_uint
from adapters.coap.messages.blocks import OPTION_BYTES, READ_MS, SILENCE_SPARED_MS
from adapters.coap.messages.request import Block
from adapters.coap.messages.settings import CoapOptions
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Outcome
from store.api.message import Message
from tests.support.coap.coap_driver import OTHER, PEER, Driver, dotted, is_ack, options_of, request

BODY = bytes(range(256)) * 10  # 2560 bytes: two and a half blocks of 1024


def upload(number: int, more: bool, payload: bytes, *, exponent: int = 6, path: str = "t/a", **parts: Any) -> bytes:
    options = ((BLOCK1, Block(number, more, exponent).encode()), *parts.pop("options", ()))
    parts.setdefault("mid", number)
    return request(path, options=options, payload=payload, **parts)


def block1(packet: Packet) -> Block:
    return Block.decode(options_of(packet)[BLOCK1], "Block1")


def block2(packet: Packet) -> Block:
    return Block.decode(options_of(packet)[BLOCK2], "Block2")


# ---- Block1


def test_a_body_in_blocks_is_published_as_a_whole() -> None:
    driver = Driver()
    first, second, third = (
        driver.exchange(upload(n, n < 2, BODY[n * 1024 : n * 1024 + 1024], content_format=50))[0] for n in range(3)
    )
    assert is_ack(first, "2.31", mid=0)
    assert is_ack(second, "2.31", mid=1)
    assert is_ack(third, "2.01", mid=2)
    assert [block1(packet) for packet in (first, second, third)] == [
        Block(0, True, 6),
        Block(1, True, 6),
        Block(2, False, 6),
    ]
    (message,) = driver.stored
    assert (message.body, message.content_type, message.address) == (BODY, "application/json", "a")


def test_blocks_of_one_wake_and_of_one_block() -> None:
    driver = Driver()
    answers = driver.exchange(*[upload(n, n < 2, BODY[n * 1024 : n * 1024 + 1024]) for n in range(3)])
    assert [dotted(answer.code) for answer in answers] == ["2.31", "2.31", "2.01"]
    (answer,) = driver.exchange(upload(0, False, b"short", mid=9))
    assert is_ack(answer, "2.01", mid=9)
    assert block1(answer) == Block(0, False, 6)
    assert [message.body for message in driver.stored] == [BODY, b"short"]


def test_blocks_that_are_not_confirmable() -> None:
    driver = Driver()
    answers = driver.exchange(*[upload(n, n < 2, BODY[n * 1024 : n * 1024 + 1024], type=NON) for n in range(3)])
    assert [(answer.type, dotted(answer.code)) for answer in answers] == [(NON, "2.31"), (NON, "2.31"), (NON, "2.01")]
    assert driver.stored[0].qos == 0


def test_a_repeated_block_is_taken_once() -> None:
    driver = Driver()
    datagrams = [upload(n, n < 2, BODY[n * 1024 : n * 1024 + 1024]) for n in range(3)]
    for data in datagrams:
        answers = driver.exchange(data, data)
        assert len(set(map(str, answers + driver.exchange(data)))) == 1
    assert [message.body for message in driver.stored] == [BODY]


def test_two_transfers_at_a_time_are_kept_apart() -> None:
    driver = Driver()
    for n in range(3):
        part = BODY[n * 1024 : n * 1024 + 1024]
        driver.exchange(upload(n, n < 2, part))
        driver.exchange(upload(n, n < 2, part[::-1], mid=10 + n, path="t/b"))
        driver.exchange(upload(n, n < 2, part, mid=20 + n, options=((292, b"tag"),)))
        driver.exchange(upload(n, n < 2, part), peer=OTHER)
    assert [(message.address, len(message.body)) for message in driver.stored] == [
        ("a", 2560),
        ("b", 2560),
        ("a", 2560),
        ("a", 2560),
    ]


def test_a_smaller_block_size_is_asked_for() -> None:
    driver = Driver({"block_size": 256})
    (answer,) = driver.exchange(upload(0, True, BODY[:1024]))
    assert block1(answer) == Block(0, True, 4)
    for n in range(4, 10):
        (answer,) = driver.exchange(upload(n, n < 9, BODY[n * 256 : n * 256 + 256], exponent=4))
    assert is_ack(answer, "2.01", mid=9)
    assert driver.stored[0].body == BODY


def test_a_block_is_missing() -> None:
    driver = Driver()
    driver.exchange(upload(0, True, BODY[:1024]))
    (answer,) = driver.exchange(upload(2, False, BODY[2048:]))
    assert is_ack(answer, "4.08", mid=2)
    (answer,) = driver.exchange(upload(1, False, BODY[1024:2048]))
    assert is_ack(answer, "4.08", mid=1)  # the transfer is over
    assert driver.stored == []


def test_the_first_block_begins_anew() -> None:
    driver = Driver()
    driver.exchange(upload(0, True, b"x" * 1024))
    driver.exchange(upload(0, True, BODY[:1024], mid=7))
    driver.exchange(upload(1, False, BODY[1024:2048]))
    assert driver.stored[0].body == BODY[:2048]


@pytest.mark.parametrize(
    ("number", "more", "size", "exponent"),
    [(0, True, 1023, 6), (0, True, 0, 6), (0, False, 17, 0), (0, True, 17, 0), (0, True, 16, 7)],
)
def test_a_block_that_is_not_what_it_says(number: int, more: bool, size: int, exponent: int) -> None:
    (answer,) = Driver().exchange(upload(number, more, b"x" * size, exponent=exponent))
    assert is_ack(answer, "4.00", mid=0)
    assert b"Block1" in answer.payload


def test_too_large_a_body_in_blocks() -> None:
    driver = Driver({"max_body_bytes": 2_000})
    driver.exchange(upload(0, True, BODY[:1024]))
    (answer,) = driver.exchange(upload(1, True, BODY[1024:2048]))
    assert is_ack(answer, "4.13", mid=1)
    assert options_of(answer)[SIZE1] == encode_uint(2_000)
    (answer,) = driver.exchange(upload(0, True, BODY[:1024], mid=5, options=((SIZE1, encode_uint(2_560)),)))
    assert is_ack(answer, "4.13", mid=5)
    assert len(driver.endpoint.transfers.uploads) == 0


def test_limits_of_transfers() -> None:
    driver = Driver({"block_transfers_peer_max": 1, "block_transfers_max": 2})
    codes = [
        dotted(driver.exchange(upload(0, True, BODY[:1024], path=path, mid=mid), peer=peer)[0].code)
        for mid, (path, peer) in enumerate([("t/a", PEER), ("t/b", PEER), ("t/a", OTHER), ("t/a", ("third", 1))])
    ]
    assert codes == ["2.31", "5.03", "2.31", "5.03"]


def test_transfers_that_others_began_and_left_give_way() -> None:
    driver = Driver({"block_transfers_peer_max": 8, "block_transfers_max": 1_024})
    for n in range(128):
        begun = [upload(0, True, b"z" * 16, exponent=0, path=f"t/{k}", mid=k) for k in range(8)]
        driver.exchange(*begun, peer=("192.0.2.66", n))
    (answer,) = driver.exchange(upload(0, True, BODY[:1024]))
    assert is_ack(answer, "5.03", mid=0)  # all of them may well go on yet
    driver.now_ms += SILENCE_SPARED_MS
    (answer,) = driver.exchange(upload(0, True, BODY[:1024], mid=1))
    assert is_ack(answer, "2.31", mid=1)
    assert len(driver.endpoint.transfers.uploads) == 1_024
    (answer,) = driver.exchange(upload(1, False, BODY[1024:2048], mid=2))
    assert is_ack(answer, "2.01", mid=2)


def test_transfers_from_before_the_clock_was_set_back_give_way() -> None:
    driver = Driver({"block_transfers_peer_max": 2})
    driver.exchange(upload(0, True, BODY[:1024], path="t/a", mid=1), upload(0, True, BODY[:1024], path="t/b", mid=2))
    driver.now_ms -= 3_600_000
    (answer,) = driver.exchange(upload(0, True, BODY[:1024], path="t/c", mid=3))
    assert is_ack(answer, "2.31", mid=3)


def test_the_transfer_that_was_silent_longest_gives_way() -> None:
    driver = Driver({"block_transfers_peer_max": 2})
    driver.exchange(upload(0, True, BODY[:1024], path="t/a", mid=1), upload(0, True, BODY[:1024], path="t/b", mid=2))
    driver.now_ms += SILENCE_SPARED_MS - 1
    driver.exchange(upload(1, True, BODY[1024:2048], path="t/a", mid=3))
    driver.now_ms += 1
    (answer,) = driver.exchange(upload(0, True, BODY[:1024], path="t/c", mid=4))
    assert is_ack(answer, "2.31", mid=4)
    last = [upload(2, False, BODY[2048:], path="t/a", mid=5), upload(1, False, BODY[1024:2048], path="t/b", mid=6)]
    assert [dotted(answer.code) for answer in driver.exchange(*last)] == ["4.08", "2.01"]
    assert [message.body for message in driver.stored] == [BODY]


def test_bytes_of_silent_transfers_give_way_to_one_that_goes_on() -> None:
    driver = Driver({"block_bytes_max": 4 * 1024})
    for n in range(3):
        driver.exchange(upload(0, True, BODY[:1024], path=f"t/{n}", mid=n))
    driver.now_ms += SILENCE_SPARED_MS
    for n in range(3):
        (answer,) = driver.exchange(upload(n, n < 2, BODY[n * 1024 : n * 1024 + 1024], mid=10 + n))
    assert is_ack(answer, "2.01", mid=12)
    assert driver.stored[0].body == BODY


def test_the_options_that_name_a_transfer_count() -> None:
    driver = Driver({"block_bytes_max": 64 * 1024})
    query = tuple("q" for _ in range(1_000))
    (answer,) = driver.exchange(upload(0, True, BODY[:16], exponent=0, query=query))
    assert is_ack(answer, "5.03", mid=0)
    assert len(driver.endpoint.transfers.uploads) == 0


def test_the_limit_of_bytes_in_blocks() -> None:
    driver = Driver({"block_bytes_max": 2_048 + 3 * (OPTION_BYTES + 1)})  # two blocks; a method and two levels
    assert [dotted(packet.code) for packet in driver.exchange(upload(0, True, BODY[:1024]))] == ["2.31"]
    assert [dotted(packet.code) for packet in driver.exchange(upload(1, True, BODY[:1024]))] == ["2.31"]
    (answer,) = driver.exchange(upload(2, True, BODY[:1024]))
    assert is_ack(answer, "5.03", mid=2)
    assert options_of(answer)[MAX_AGE] == b"\x02"
    assert len(driver.endpoint.transfers.uploads) == 0


def test_a_silent_transfer_is_forgotten() -> None:
    driver = Driver()
    driver.exchange(upload(0, True, BODY[:1024]))
    driver.tick(247_000)
    (answer,) = driver.exchange(upload(1, False, BODY[1024:]))
    assert is_ack(answer, "4.00", mid=1) or is_ack(answer, "4.08", mid=1)
    assert len(driver.endpoint.transfers.uploads) == 0


def test_a_refused_body_is_refused_with_its_last_block() -> None:
    driver = Driver()
    driver.exchange(upload(0, True, BODY[:1024]))
    outcome = Outcome(error=Refusal(Cause.FORBIDDEN, "no"))
    (answer,) = driver.exchange(upload(1, False, BODY[1024:2048]), outcome=outcome)
    assert is_ack(answer, "4.03", mid=1)


def test_a_late_answer_to_the_last_block() -> None:
    driver = Driver()
    driver.exchange(upload(0, True, BODY[:1024]))
    effects = driver.receive(upload(1, False, BODY[1024:2048]))
    assert driver.tick(1_000)[0].type == ACK
    driver.complete(effects)
    (answer,) = driver.sent()
    assert (answer.type, dotted(answer.code), block1(answer)) == (CON, "2.01", Block(1, False, 6))


def test_a_put_in_blocks() -> None:
    driver = Driver()
    driver.exchange(upload(0, True, BODY[:1024], code=PUT))
    (answer,) = driver.exchange(upload(1, False, b"", code=PUT))
    assert is_ack(answer, "2.01", mid=1)
    assert block1(answer) == Block(1, False, 6)
    assert driver.stored[0].body == BODY[:1024]


# ---- Block2


def read(driver: Driver, number: int, exponent: int, mid: int = 1) -> Packet:
    return driver.get("t/a", mid=mid, options=((BLOCK2, Block(number, False, exponent).encode()),))


def test_a_large_value_is_read_in_blocks() -> None:
    driver = Driver(last=Message(address="a", body=BODY, id="1", content_type="application/json"))
    first = driver.get("t/a")
    assert block2(first) == Block(0, True, 6)
    assert options_of(first)[SIZE2] == encode_uint(2_560)
    driver.last = Message(address="a", body=b"changed meanwhile", id="2")
    rest = [read(driver, n, 6, mid=n + 1) for n in (1, 2)]
    assert [block2(packet) for packet in rest] == [Block(1, True, 6), Block(2, False, 6)]
    assert first.payload + rest[0].payload + rest[1].payload == BODY
    assert len({options_of(packet)[ETAG] for packet in (first, *rest)}) == 1
    assert {options_of(packet)[CONTENT_FORMAT] for packet in (first, *rest)} == {encode_uint(50)}
    assert len(driver.calls) == 1
    again = read(driver, 2, 6, mid=3)  # its acknowledgement was lost
    assert (again.payload, block2(again)) == (rest[1].payload, Block(2, False, 6))
    assert len(driver.calls) == 1
    driver.tick(READ_MS)
    assert len(driver.endpoint.transfers.snapshots) == 0


def test_a_body_that_was_read_gives_way_at_once() -> None:
    driver = Driver({"block_transfers_peer_max": 2}, last=Message(address="a", body=BODY, id="1"))
    paths = ("t/a", "t/b", "t/c")
    for mid, path in enumerate(paths[:2]):
        driver.get(path, mid=mid)
    assert block2(driver.get("t/b", mid=3, options=((BLOCK2, Block(2, False, 6).encode()),))).more is False
    driver.get("t/c", mid=4)
    calls = len(driver.calls)
    for mid, path in enumerate(("t/a", "t/c"), 5):
        driver.get(path, mid=mid, options=((BLOCK2, Block(1, True, 6).encode()),))
    assert len(driver.calls) == calls  # the one that was read made room


def read_whole(driver: Driver, path: str, mid: int) -> None:
    driver.get(path, mid=mid)
    assert block2(driver.get(path, mid=mid + 1, options=((BLOCK2, Block(2, False, 6).encode()),))).more is False


def test_bodies_that_were_read_are_forgotten_in_their_order() -> None:
    driver = Driver(last=Message(address="a", body=BODY, id="1"))
    snapshots = driver.endpoint.transfers.snapshots
    driver.get("t/left", mid=0)
    began_ms = driver.now_ms
    for number in range(10):
        read_whole(driver, f"t/{number}", 10 * number + 1)
        driver.tick(READ_MS // 3)
        assert len(snapshots) <= 1 + 3
    driver.tick(READ_MS)
    assert len(snapshots) == 1
    driver.tick(began_ms + CoapOptions().exchange_lifetime_ms - driver.now_ms)
    assert len(snapshots) == 0


def test_the_body_that_was_read_first_gives_way_first() -> None:
    driver = Driver({"block_transfers_peer_max": 2}, last=Message(address="a", body=BODY, id="1"))
    read_whole(driver, "t/a", 1)
    read_whole(driver, "t/b", 3)
    driver.get("t/c", mid=5)
    calls = len(driver.calls)
    assert block2(driver.get("t/b", mid=6, options=((BLOCK2, Block(2, False, 6).encode()),))).more is False
    assert len(driver.calls) == calls  # it is still held


def test_smaller_blocks_from_the_second_one_on() -> None:
    driver = Driver(last=Message(address="a", body=BODY, id="1"))
    body = driver.get("t/a").payload
    number, more = len(body) // 64, True
    while more:
        packet = read(driver, number, 2, mid=number)
        more = block2(packet).more
        body += packet.payload
        number += 1
    assert body == BODY


def test_blocks_no_larger_than_asked_for_nor_than_ours() -> None:
    driver = Driver({"block_size": 64}, last=Message(address="a", body=BODY, id="1"))
    assert block2(read(driver, 0, 1)) == Block(0, True, 1)
    assert block2(read(driver, 0, 6, mid=2)) == Block(0, True, 2)
    assert block2(driver.get("t/a", mid=3)) == Block(0, True, 2)


def test_a_small_value_asked_for_in_blocks() -> None:
    driver = Driver(last=Message(address="a", body=b"small", id="1"))
    packet = read(driver, 0, 6)
    assert (block2(packet), packet.payload) == (Block(0, False, 6), b"small")
    assert len(driver.endpoint.transfers.snapshots) == 0


def test_without_room_each_block_is_read_anew() -> None:
    driver = Driver({"block_bytes_max": 100}, last=Message(address="a", body=BODY, id="1"))
    body = b"".join(read(driver, n, 6, mid=n).payload for n in range(3))
    assert body == BODY
    assert len(driver.calls) == 3


def test_a_block_behind_the_end() -> None:
    driver = Driver(last=Message(address="a", body=BODY, id="1"))
    assert is_ack(read(driver, 3, 6), "4.00")
    assert is_ack(read(driver, 0, 7), "4.00")
    driver.get("t/a", mid=2)
    answer = read(driver, 0xFFFFF, 6, mid=3)
    assert is_ack(answer, "4.00", mid=3)
    assert BLOCK2 not in options_of(answer)


def test_snapshots_are_forgotten() -> None:
    driver = Driver(last=Message(address="a", body=BODY, id="1"))
    driver.exchange(request("t/a", GET))
    assert len(driver.endpoint.transfers.snapshots) == 1
    driver.tick(247_000)
    assert len(driver.endpoint.transfers.snapshots) == 0


def test_a_long_list_of_links_in_blocks() -> None:
    driver = Driver(listed=[f"plant/line{n}" for n in range(100)])
    first = driver.get(".well-known/core")
    assert len(first.payload) == 1024
    body, number = first.payload, 0
    while block2(first).more:
        number += 1
        first = driver.get(".well-known/core", mid=number + 1, options=((BLOCK2, Block(number, False, 6).encode()),))
        body += first.payload
    assert body.decode().count("core.ps.data") == 100


def test_a_size_that_is_asked_for_is_told_with_a_body_that_needs_no_blocks() -> None:
    message = Message(address="a/b", body=b"seven", id="i")
    driver = Driver(last=message)
    assert SIZE2 not in options_of(driver.get("t/a/b"))
    answer = driver.get("t/a/b", mid=2, options=((SIZE2, b""),))
    assert read_uint(options_of(answer)[SIZE2]) == 5
    assert BLOCK2 not in options_of(answer)
