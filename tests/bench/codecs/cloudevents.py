"""CloudEvents: `adapters.cloudevents` beside the SDK (`cloudevents`), JSON and binary mode.

Both begin with the headers of a request, or with JSON. The SDK ends with an event, which would still have to become a
message; ours ends with the message.
"""

import json

from cloudevents.core.bindings.http import HTTPMessage, from_binary_event
from cloudevents.core.formats.json import JSONFormat

from adapters.cloudevents import from_structured, to_structured
from adapters.http.handlers.messages import read_events
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.request import HttpRequest
from gateway.domain.principal import Principal
from tests.bench.codecs.subject import Subject, Work

EVENT = {
    "specversion": "1.0",
    "id": "b2c6-0001",
    "source": "/plants/7",
    "type": "com.example.reading.v1",
    "subject": "telemetry/site1/dev42/temp",
    "time": "2026-01-02T03:04:05.678Z",
    "datacontenttype": "application/json",
    "partitionkey": "dev42",
    "data": {"value": 21.5, "unit": "C"},
}
AS_BYTES = {"now_ms": 1_700_000_000_000, "protocol": "http", "device": "d"}
EXACT = (  # attributes that should leave as they are here
    b'{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"2026-01-02T03:04:05.1234567Z",'
    b'"data":{"a":1.50,"b":12345678901234567890.5,"c":"\\u00e9"}}'
)
CHANGES = {
    "no id": {"id": None},
    "an empty type": {"type": ""},
    "no specversion": {"specversion": None},
    "a source that is no URI reference": {"source": "a b<c>"},
    "a time that is a date alone": {"time": "2026-01-02"},
    "a time without a zone": {"time": "2026-01-02T03:04:05"},
    "a time of ISO 8601's week dates": {"time": "2026-W01-5T03:04:05Z"},
    "a dataschema that is relative": {"dataschema": "schemas/1"},
    "a datacontenttype that is none": {"datacontenttype": "json"},
    "a name in capitals": {"partitionKey": "x"},
    "a name with a hyphen": {"partition-key": "x"},
    "a control character in a subject": {"subject": "a\x01b"},
    "a noncharacter in an extension": {"ext": "\ufdd0"},
    "an extension of 64 bits": {"ext": 1 << 40},
    "an extension that is a fraction": {"ext": 1.5},
    "an extension that is an object": {"ext": {}},
    "data beside data_base64": {"data_base64": "AA=="},
    "data_base64 that is none": {"data": None, "data_base64": "A*A="},
}


def changed(change: dict) -> bytes:
    """Returns the event with some members in place of its own; None leaves one out."""
    return json.dumps({name: value for name, value in (EVENT | change).items() if value is not None}).encode()


def ours(body: bytes):
    """Reads an event in JSON."""
    return from_structured(body, **AS_BYTES)


def sdk(body: bytes):
    """Reads an event in JSON."""
    return JSONFormat().read(None, body)


def subject() -> Subject:
    """Returns the comparison."""
    body = changed({})
    attributes = {name: value for name, value in EVENT.items() if name not in {"data", "datacontenttype"}}
    data = json.dumps(EVENT["data"]).encode()
    headers = {f"ce-{name}": value for name, value in attributes.items()} | {"content-type": "application/json"}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    options = HttpOptions()
    message, event = ours(body), sdk(body)
    works = [
        Work("read structured mode", 1, {"ours": lambda: ours(body), "cloudevents": lambda: sdk(body)}),
        Work(
            "read binary mode",
            1,
            {
                "ours": lambda: read_events(
                    HttpRequest(method="POST", target=b"/events", headers=raw, body=data),
                    Principal(name=""),
                    options,
                    now_ms=1,
                ),
                "cloudevents": lambda: from_binary_event(HTTPMessage(headers, data)),
            },
        ),
        Work(
            "write structured mode",
            1,
            {"ours": lambda: to_structured(message), "cloudevents": lambda: JSONFormat().write(event)},
        ),
    ]
    says = {
        "ours": lambda: to_structured(ours(EXACT)).decode(),
        "cloudevents": lambda: JSONFormat().write(sdk(EXACT)).decode(),
    }
    malformed = {title: changed(change) for title, change in CHANGES.items()}
    imports = {"ours": "adapters.cloudevents", "cloudevents": "cloudevents.core.bindings.http"}
    return Subject(works, {"ours": ours, "cloudevents": sdk}, malformed, imports, says)
