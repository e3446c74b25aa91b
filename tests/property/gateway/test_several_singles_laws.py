"""Requests in flight on one HTTP connection are answered as if all had gone the general way, whichever end first."""

from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Outcome
from store.format.frame import LogOffset, Position
from tests.support.gateway.http_client import HttpClient, event
from tests.support.process.examples import examples

REFUSAL = Refusal(Cause.OVERLOAD, "full")


def place(number: int) -> Position:
    return Position(LogOffset(number), 0)


def outcome(numbers: list[int], refused: set[int]) -> Outcome:
    """Returns the outcome of the messages of these numbers, each stored at a place of its own."""
    return Outcome(
        positions={index: (place(number),) for index, number in enumerate(numbers) if number not in refused},
        refused={index: REFUSAL for index, number in enumerate(numbers) if number in refused},
    )


def end(client: HttpClient, index: int, refused: set[int]) -> None:
    """Ends one of the things that are in flight: single messages, then publications."""
    if index < len(client.hub.singles):
        number = int(client.in_flight[index])
        if number in refused:
            client.fail(index, Cause.OVERLOAD)
        else:
            client.store(index, frame=number)
        return
    effect, size_bytes = client.hub.published.pop(index - len(client.hub.singles))
    numbers = [int(message.id) for message in effect.messages]
    client.connection.published(effect.token, outcome(numbers, refused), size_bytes)


def in_flight(client: HttpClient) -> int:
    return len(client.hub.singles) + len(client.hub.published)


@pytest.mark.parametrize("plain", [False, True], ids=["transport", "plain"])
@settings(deadline=None, max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_answers_are_those_of_the_general_way_in_its_order(data: st.DataObject, *, plain: bool) -> None:
    with closing(HttpClient(plain=plain)) as short:
        check(short, data)


def check(short: HttpClient, data: st.DataObject) -> None:
    """Sends and ends requests in an order that is drawn, and compares the answers with those of the general way."""
    long = HttpClient()
    long.connection.singles = None
    refused = data.draw(st.sets(st.integers(0, 30)), label="refused")
    number = 0
    for _ in range(data.draw(st.integers(1, 12), label="steps")):
        if in_flight(short) and data.draw(st.booleans(), label="one ends"):
            end(short, data.draw(st.integers(0, in_flight(short) - 1)), refused)
            continue
        count = data.draw(st.integers(1, 3), label="requests of a read")
        odd = data.draw(st.integers(0, 5), label="parsed") == 0
        read = b"".join([event(str(number + n), *([("x-other", "1")] if odd else [])) for n in range(count)])
        number += count
        short.send(read)
        long.send(read)
    while in_flight(short):
        end(short, data.draw(st.integers(0, in_flight(short) - 1)), refused)
    while in_flight(long):
        end(long, 0, refused)
    said = short.said()
    assert [(one.status, one.json.get("id")) for one in said] == [
        (503, None) if n in refused else (200, str(n)) for n in range(number)
    ]
    assert [one.json.get("position") for one in said] == [one.json.get("position") for one in long.said()]
    assert short.rests
    assert long.rests
