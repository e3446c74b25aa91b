"""A batch of plain events is read in one loop, and means what its events mean when each is read by itself."""

import json
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.cloudevents import batches, canonical_ms, format_ms, from_batch, parse_ms, structured
from gateway.domain.errors import Refusal
from store.api.message import Message
from tests.support.process.examples import examples

TEXTS = (
    "1",
    "a/b",
    "//a/b?c",
    "",
    "with space",
    "\u00e9",
    "\x07",
    "\ud800",
    "+",
    "text/plain",
    "application/json",
    "k" * 600,
)
TIMES = ("2026-11-23T02:45:00Z", "2026-11-23T02:45:00.120Z", "2026-11-23T02:45:00.12Z", "1969-01-01T00:00:00Z", "now")
DATA = (1, "text", None, {"n": 1.0, "deep": [[]]}, [], "")
rarely = st.integers(0, 14).map(lambda n: n == 0)


@st.composite
def events(draw: st.DrawFn) -> Any:
    """Draws an event that mostly is one, and mostly plain."""
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": draw(st.sampled_from(TEXTS[:3])),
        "source": draw(st.sampled_from(("/s", "//t"))),
        "type": draw(st.sampled_from(("t", "u/v"))),
    }
    if draw(st.booleans()):
        event["data"] = draw(st.sampled_from(DATA))
    if draw(st.booleans()):
        event["time"] = draw(st.sampled_from(TIMES if draw(rarely) else TIMES[:4]))
    for name in draw(st.lists(st.sampled_from(("subject", "partitionkey", "datacontenttype")), max_size=3)):
        event[name] = "application/json" if name == "datacontenttype" else draw(st.sampled_from(("a/b", "k+", "2")))
    if draw(rarely):
        name = draw(st.sampled_from((*event, "subject", "dataschema", "ext", "expirytime", "headgateaddress", "NAME")))
        event[name] = draw(st.one_of(st.sampled_from(TEXTS), st.sampled_from((1, True, None, 2.5, 2**40, {}))))
    if draw(rarely):
        event["data_base64"] = "aGk="
    return event if not draw(rarely) else draw(st.sampled_from((1, [], None, {})))


def read(body: bytes, **more: Any) -> list[Message] | tuple[str, object]:
    try:
        return from_batch(body, now_ms=7_000, protocol="http", device="d", **more)
    except Refusal as refusal:
        return str(refusal), getattr(refusal, "refused", {}).keys()


@settings(deadline=None, max_examples=examples(400), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(events(), max_size=4), st.booleans())
def test_a_batch_is_read_alike_in_one_loop_and_event_by_event(batch: list[Any], named: bool) -> None:
    body = json.dumps(batch).encode()
    more = {"device_of": lambda address: f"at {address}"} if named else {}
    found = read(body, **more)
    with mock.patch.object(structured, "plain_batch", return_value=None):
        assert read(body, **more) == found


@pytest.mark.parametrize("data", [b'{"n": 1}', b'"text"', b"null", b"[ 1 ,\n2]", b'"\\u00e9\xc3\xa9"'])
def test_the_text_of_data_is_kept_as_it_came(data):
    body = b'[{"specversion":"1.0","id":"1","source":"/s","type":"t","data": ' + data + b" }]"
    [found] = read(body)
    assert found.body == data
    how = {"device_of": lambda _: "d", "principal": None, "is_json": structured.is_json, "events_max": 1}
    assert batches.plain_batch(body, now_ms=7_000, protocol="http", **how) == [found]


def test_no_more_contexts_are_kept_than_the_limit(monkeypatch):
    monkeypatch.setattr(batches, "CONTEXTS_MAX", 10)
    batches._contexts.clear()
    for n in range(35):
        event = {"specversion": "1.0", "id": "1", "source": f"/{n}", "type": "t" * (600 if n % 2 else 1)}
        assert isinstance(read(json.dumps([event]).encode()), list)
        assert len(batches._contexts) <= 10
    assert all(len(kind[1]) == 1 for kind in batches._contexts)


def written_ms(text: str) -> int | None:
    """Returns the time of a text by the functions that read and write any time, if they write it alike."""
    try:
        time_ms = max(parse_ms(text), 0)
    except ValueError:
        return None
    return time_ms if format_ms(time_ms) == text else None


@settings(deadline=None)
@given(
    st.integers(0, 253_402_300_799_999).map(format_ms),
    st.integers(0, 24),
    st.sampled_from(("", "0", "5", "9", "Z", ".", ":", "+", " ", "\u0665", "60Z", ".000Z")),
)
def test_a_time_is_known_by_its_minute_just_if_it_is_written_as_we_write_it(text: str, at: int, other: str) -> None:
    assert canonical_ms(text) == written_ms(text) == parse_ms(text)
    for changed in (text[:at] + other + text[at + 1 :], text[:at] + other, text + other):
        assert canonical_ms(changed) == written_ms(changed)
