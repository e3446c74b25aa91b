"""Rows to requests, and requests until they are answered; no gateway, no JVM."""

import json
from base64 import b64decode
from datetime import UTC, datetime

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql import types as T  # noqa: E402, N812

from adapters.cloudevents import from_batch  # noqa: E402
from spark.errors import BadOption, BadRow, GatewayUnreachable, PublishRefused  # noqa: E402
from spark.publishing.client import GatewayClient  # noqa: E402
from spark.publishing.events import RowEvents, requests  # noqa: E402
from spark.publishing.options import WriterOptions  # noqa: E402
from spark.source.progress import GroupProgress  # noqa: E402

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine


def schema(**columns):
    kinds = {"text": T.StringType(), "bytes": T.BinaryType(), "double": T.DoubleType(), "time": T.TimestampType()}
    kinds["headers"] = T.MapType(T.StringType(), T.StringType())
    return T.StructType([T.StructField(name, kinds[kind]) for name, kind in columns.items()])


def published(rows, columns, **options):
    """Returns the messages that a gateway makes of rows."""
    parsed = WriterOptions(**options)
    sent = list(requests(RowEvents(parsed, columns), rows, parsed, "s"))
    return [
        message for one in sent for message in from_batch(one.body, now_ms=7, protocol="http", device="spark")
    ], sent


def test_a_row_of_every_field_is_the_message_that_the_gateway_stores():
    columns = schema(
        address="text", body="bytes", key="text", type="text", content_type="text", id="text", time="time",
        expires_at="time", traceparent="text", headers="headers",
    )  # fmt: skip
    when = datetime(2026, 1, 2, 3, 4, 5, 678_999, UTC)
    row = {
        "address": "alarms/%2Bx/ü",
        "body": b"\x00\xff",
        "key": "k",
        "type": "t",
        "content_type": "application/octet-stream",
        "id": "i",
        "time": when,
        "expires_at": when,
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "headers": [("tenant", "x"), ("none", None)],
    }
    ((message,), _) = published([row], columns)
    assert (message.address, message.body, message.key, message.type) == ("alarms/%2Bx/ü", b"\x00\xff", "k", "t")
    assert (message.id, message.content_type) == ("i", "application/octet-stream")
    assert message.time_ms == message.expires_at_ms == 1_767_323_045_678
    assert message.traceparent == row["traceparent"]
    assert ("tenant", "x") in message.properties
    assert "none" not in dict(message.properties)


def test_columns_that_are_no_fields_are_the_body():
    ((message,), _) = published(
        [{"device": "d1", "mean": 2.5, "at": datetime(2026, 1, 2, tzinfo=UTC)}],
        schema(device="text", mean="double", at="time"),
        address="analytics/{device}/mean",
    )
    assert message.address == "analytics/d1/mean"
    assert json.loads(message.body) == {"device": "d1", "mean": 2.5, "at": "2026-01-02T00:00:00Z"}
    assert (message.content_type, message.type, message.id) == ("application/json", "headgate.row.v1", "s-0")


ROWS = st.lists(
    st.fixed_dictionaries(
        {"address": st.sampled_from(["a/b", "a/%2B", "ü/%252B/%23", "/", "a/%2F"]), "body": st.binary(max_size=60)}
    ),
    max_size=30,
)


@PATIENT
@given(rows=ROWS, count=st.integers(1, 7), size=st.integers(1, 900))
def test_requests_hold_every_row_once_in_order_and_are_the_same_again(rows, count, size):
    columns = schema(address="text", body="bytes")
    messages, sent = published(rows, columns, rowsPerRequest=count, bytesPerRequest=size)
    assert [(m.address, m.body) for m in messages] == [(row["address"], row["body"]) for row in rows]
    assert [one.first for one in sent] == [sum(x.rows for x in sent[:n]) for n in range(len(sent))]
    assert all(one.rows <= count and (one.rows == 1 or len(one.body) <= size + 1 + count) for one in sent)
    assert published(rows, columns, rowsPerRequest=count, bytesPerRequest=size)[1] == sent


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"address": "a/+/b"}, "row 1 of the partition: the address 'a/[+]/b' holds"),
        ({"address": ""}, "the address is empty"),
        ({"address": None}, "the address is empty"),
        ({"headers": [("Tenant", "x")]}, "no header can be called 'Tenant'"),
        ({"headers": [("subject", "x")]}, "no header can be called 'subject'"),
        ({"id": "\ud800"}, "row 1 of the partition"),
    ],
)
def test_a_row_that_is_no_message_is_named(row, message):
    columns = schema(address="text", body="bytes", id="text", headers="headers")
    good = {"address": "a", "body": b"", "id": None, "headers": None}
    with pytest.raises(BadRow, match=message):
        published([good, {**good, **row}], columns)


@pytest.mark.parametrize(
    ("options", "columns", "message"),
    [
        ({}, {"body": "bytes"}, "option address is missing"),
        ({"address": "a/{devise}"}, {"device": "text"}, "names devise; the columns are: device"),
        ({"address": "a/{"}, {"device": "text"}, "option address cannot be"),
        ({"address": "a/{device!r}"}, {"device": "text"}, "a column's name alone"),
        ({}, {"address": "text"}, "neither a column body"),
        ({}, {"address": "text", "body": "double"}, "has body double, which binary or string is"),
    ],
)
def test_rows_that_no_message_can_be_made_of_are_refused_before_any(options, columns, message):
    with pytest.raises(BadOption, match=message):
        RowEvents(WriterOptions(**options), schema(**columns))


def test_options_for_writing():
    given = {"GATEWAY": "http://a:1/, https://b:2", "qos": "0", "retain": "true", "checkpointLocation": "/x"}
    assert WriterOptions.parse(given) == WriterOptions(gateway="http://a:1,https://b:2", qos=0, retain=True)
    for wrong, message in (
        ({"adress": "x"}, "address is"),
        ({"qos": "3"}, "0, 1 or 2"),
        ({"rowsPerRequest": "10001"}, "at most 10000"),
        ({"gateway": "nowhere"}, "http://127.0.0.1:8080"),
    ):
        with pytest.raises(BadOption, match=message):
            WriterOptions.parse(wrong)
    with pytest.raises(BadOption) as caught:
        WriterOptions.parse({"retrySeconds": "x", "password": "secret"})
    assert "secret" not in str(caught.value)


class ScriptedGateway:
    """Answers requests by a script: statuses, or errors to raise."""

    def __init__(self, *script):
        self.script, self.seen, self.slept = list(script), [], []
        self.now_s = 0.0

    def handle(self, request):
        self.seen.append((request.method, str(request.url), request.content))
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    def client(self, urls="http://a:1", **options):
        return GatewayClient(
            urls, transport=httpx.MockTransport(self.handle), sleep=self.sleep, clock_s=lambda: self.now_s, **options
        )

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now_s += seconds


def problem(status, detail, **more):
    return httpx.Response(status, json={"detail": detail, **more})


def test_a_request_is_sent_again_and_again_until_it_is_answered():
    gateway = ScriptedGateway(
        httpx.ConnectError("refused"), problem(503, "full"), httpx.Response(429, headers={"retry-after": "1"}),
        httpx.ReadTimeout("late"), problem(504, "unknown"), httpx.Response(200, json=[]),
    )  # fmt: skip
    answer = gateway.client("http://a:1,http://b:2").ask("POST", "/events", content=b"x")
    assert (answer.status, answer.document) == (200, [])
    assert {content for _, _, content in gateway.seen} == {b"x"}
    assert [url[7] for _, url, _ in gateway.seen] == list("ababab")
    assert gateway.slept == [*sorted(gateway.slept[:2]), 1.0, *gateway.slept[3:]]


def test_a_gateway_that_stays_away_is_one_sentence():
    gateway = ScriptedGateway(*[httpx.ConnectError("Connection refused")] * 50)
    with pytest.raises(
        GatewayUnreachable, match=r"http://a:1 has not taken the request for 3 s .*Connection refused"
    ) as e:
        gateway.client(retry_s=3).ask("GET", "/groups")
    assert "\n" not in str(e.value)
    assert sum(gateway.slept) <= 3


def test_what_is_refused_for_good_is_not_sent_again():
    gateway = ScriptedGateway(problem(400, "a batch", errors=[{"index": 3, "detail": "time: is none"}]))
    with pytest.raises(PublishRefused, match=r"status 400: a batch .message 3 of the request: time: is none") as caught:
        gateway.client().ask("POST", "/events")
    assert caught.value.status == 400
    assert len(gateway.seen) == 1


def reset(gateway, at=-1):
    method, url, content = gateway.seen[at]
    assert (method, url) == ("POST", "http://a:1/groups/g%2F1/reset")
    return json.loads(content)["offsets"]


def test_a_group_is_made_and_told_of_offsets_at_intervals():
    gateway = ScriptedGateway(
        problem(404, "no group"), httpx.Response(201, json={"member": "m"}), httpx.Response(204),
        *[httpx.Response(200, json={})] * 3,
    )  # fmt: skip
    progress = GroupProgress(gateway.client(retry_s=0), "g/1", "telemetry", clock_s=lambda: gateway.now_s)
    progress.reached({16: 5})
    assert [one[0] for one in gateway.seen] == ["GET", "POST", "DELETE", "POST"]
    assert reset(gateway) == {"16": 5}
    gateway.now_s = 1
    progress.reached({16: 6})
    assert len(gateway.seen) == 4
    gateway.now_s = 6
    progress.reached({16: 7})
    assert reset(gateway) == {"16": 7}
    progress.reached({16: 8})
    progress.close()
    assert reset(gateway) == {"16": 8}
    count = len(gateway.seen)
    progress.reached({16: 8}, flush=True)
    assert len(gateway.seen) == count


def test_a_gateway_that_is_away_does_not_stop_the_query():
    group = httpx.Response(200, json={"topic": "telemetry", "members": []})
    gateway = ScriptedGateway(httpx.ConnectError("refused"), group, problem(503, "full"), httpx.Response(200, json={}))
    progress = GroupProgress(gateway.client(retry_s=0), "g/1", "telemetry", interval_s=0)
    for n in range(3):
        progress.reached({16: n})
    assert reset(gateway) == {"16": 2}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"topic": "alarms", "members": []}, "reads alarms"),
        ({"topic": "telemetry", "members": ["m"]}, "members of its"),
    ],
)
def test_a_group_of_others_is_left_alone(found, message):
    gateway = ScriptedGateway(httpx.Response(200, json=found))
    with pytest.raises(BadOption, match=message):
        GroupProgress(gateway.client(), "g/1", "telemetry").reached({16: 1})
    assert len(gateway.seen) == 1


def test_a_user_and_a_token_are_sent():
    seen = []

    def handle(request):
        seen.append(request.headers["authorization"])
        return httpx.Response(200)

    for options in ({"user": "u", "password": "p"}, {"token": "t"}):
        GatewayClient("http://a:1", transport=httpx.MockTransport(handle), **options).ask("GET", "/")
    assert b64decode(seen[0].removeprefix("Basic ")) == b"u:p"
    assert seen[1] == "Bearer t"
