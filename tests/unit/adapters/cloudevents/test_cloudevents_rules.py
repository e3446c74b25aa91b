"""Route rules: events to addresses."""

import pytest

from adapters.cloudevents import EventRoute, attributes_of, from_attributes, route_by

MINIMAL = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "com.example.order/v1"}
RULES = (
    EventRoute(type="com.example.order/*", address="orders/{partitionkey}"),
    EventRoute(type="com.example.*", source="/shop*", address="shop/{type}/{subject}"),
    EventRoute(source="/other", address="fixed"),
)


@pytest.mark.parametrize(
    ("attributes", "address"),
    [
        ({"partitionkey": "a/b"}, "orders/a%2Fb"),
        ({"subject": "x/+"}, "shop/com.example.order%2Fv1/x/%2B"),
        ({}, "events/com.example.order%2Fv1"),
        ({"source": "/other"}, "fixed"),
        ({"source": "/third", "subject": "s"}, "s"),
    ],
)
def test_the_first_rule_that_applies(attributes: dict[str, str], address: str) -> None:
    context = {**MINIMAL, **attributes}
    message = from_attributes(
        context, b"", content_type=None, now_ms=0, protocol="http", device="", route=route_by(RULES)
    )
    assert message.address == address
    assert attributes_of(message) == context


def test_without_rules_there_is_no_route() -> None:
    assert route_by(()) is None
