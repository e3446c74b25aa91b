"""`/subscriptions` over both versions: conditions on a subscription's revision, and its way back."""

import json
from typing import Any

import pytest

from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Call, Outcome
from gateway.port.kv import Match
from gateway.port.push import DeliveryStatus, GetSubscription, PushSubscription, SubscriptionSpec, UpdateSubscription
from store.api.keys import EXISTS
from tests.support.http.http_driver import Gateway, Http1Client, Http2Client

SPEC = SubscriptionSpec(sink="https://a.example/", protocol="HTTP")
REVISION = 7


class OneSubscription(Gateway):
    """A gateway that has the subscription `s1`, and changes nothing."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        super().__init__()

    def answer_effect(self, call: Call) -> Outcome:
        request = call.request
        if not type(request).__name__.endswith("Subscription"):
            return super().answer_effect(call)
        self.asked.append(request)
        if not isinstance(request, GetSubscription) and not request.match.holds(REVISION):
            return Outcome(error=Refusal(Cause.PRECONDITION, "the subscription is at revision 7"))
        return Outcome(value=PushSubscription(id="s1", revision=REVISION, spec=SPEC, status=DeliveryStatus()))


@pytest.fixture(params=[Http1Client, Http2Client], ids=["h1", "h2"])
def client(request: pytest.FixtureRequest) -> Any:
    return request.param(OneSubscription())


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (("if-none-match", '"7"'), 304),
        (("if-none-match", 'W/"7"'), 304),
        (("if-none-match", "*"), 304),
        (("if-none-match", '"6", "8"'), 200),
        (("if-match", '"7"'), 200),
        (("if-match", '"6"'), 412),
        (("if-match", 'W/"7"'), 412),
    ],
)
def test_a_subscription_is_shown_under_conditions(client: Any, header: tuple[str, str], status: int) -> None:
    answer = client.ask("GET", "/subscriptions/s1", header)
    assert answer.status == status
    if status == 304:
        assert (answer.body, answer["etag"]) == (b"", '"7"')


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/subscriptions/s1"),
        ("DELETE", "/subscriptions/s1"),
        ("POST", "/subscriptions/s1/pause"),
        ("POST", "/subscriptions/s1/resume"),
    ],
)
def test_a_subscription_is_changed_under_conditions(client: Any, method: str, path: str) -> None:
    body = json.dumps({"sink": SPEC.sink, "protocol": "HTTP"}).encode() if method == "PUT" else None
    for header, match, status in (
        ((), Match(), 200),
        ((("if-match", '"7"'),), Match(any_of=(7,)), 200),
        ((("if-match", '"1", "7"'),), Match(any_of=(1, 7)), 200),
        ((("if-match", "*"),), Match(any_of=(EXISTS,)), 200),
        ((("if-match", '"6"'),), Match(any_of=(6,)), 412),
        ((("if-match", 'W/"7"'),), Match(any_of=((1 << 63) - 1,)), 412),
        ((("if-match", '"of-another-server"'),), Match(any_of=((1 << 63) - 1,)), 412),
        ((("if-none-match", "*"),), Match(any_of=(0,)), 412),
    ):
        answer = client.ask(method, path, *header, body=body)
        assert (answer.status, client.gateway.asked[-1].match) == (status, match)
        if status == 412:
            assert answer["content-type"] == "application/problem+json"


def test_what_is_shown_may_be_sent_back(client: Any) -> None:
    shown = client.ask("GET", "/subscriptions/s1").json
    assert shown["status"]["state"] == "pending"
    answer = client.ask("PUT", "/subscriptions/s1", body=json.dumps({**shown, "types": ["a"]}).encode())
    assert answer.status == 200
    asked = client.gateway.asked[-1]
    assert isinstance(asked, UpdateSubscription)
    assert type(asked.spec) is SubscriptionSpec
    assert asked.spec.types == ("a",)
    assert client.ask("PUT", "/subscriptions/s1", body=json.dumps({**shown, "colour": 1}).encode()).status == 400
