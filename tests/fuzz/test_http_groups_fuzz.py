"""Random requests below `/groups`: asked as they are meant, or refused by a problem document, never an exception."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.errors import Cause, Refusal
from tests.support.http.http_driver import Http1Client
from tests.support.http.http_groups import GroupsGateway
from tests.support.process.examples import examples

METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD"])
PARTS = st.sampled_from(
    ["g", "members", "m", "messages", "commit", "reset", "", "%2F", "a%20b", "%zz", "..", "?", "x" * 70]
)
QUERIES = st.sampled_from(["", "?max=5", "?wait=0.5", "?after=1~2.3", "?after=~", "?limit=x", "?max", "?%"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ["topic", "strategy", "start", "ttl_s", "after", "generation", "offsets", "to", "timestamp", "queues"]
BODIES = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4).map(lambda body: json.dumps(body).encode())


@settings(max_examples=examples(150), deadline=None)
@given(METHODS, st.lists(PARTS, max_size=5), QUERIES, BODIES | st.binary(max_size=40))
def test_random_requests(method, parts, query, body):
    gateway = GroupsGateway()
    gateway.answers = [Refusal(Cause.CONFLICT, "whatever it is")]
    answer = Http1Client(gateway).ask(method, "/groups/" + "/".join(parts) + query, body=body)
    assert answer.status in {400, 404, 405, 409}
    assert answer["content-type"] == "application/problem+json"
    assert (answer.status == 409) == bool(gateway.asked)
