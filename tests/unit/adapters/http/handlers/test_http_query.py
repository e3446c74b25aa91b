"""Parameters of queries: each is known, is given once, and is within its limit."""

import pytest

from adapters.cloudevents import AttributeRefusal
from adapters.http.handlers.finding import LIMIT_MAX, finding, last_values
from adapters.http.wire.request import HttpRequest


def asked(target: str) -> HttpRequest:
    return HttpRequest(method="GET", target=target.encode(), headers=())


@pytest.mark.parametrize("digits", ["0", "1001", "000000001999999", "1" * 30, "-1", "1.0", "", "%D9%A1"])
def test_a_page_is_no_longer_than_its_limit_however_it_is_written(digits):
    with pytest.raises(AttributeRefusal, match="limit"):
        finding(asked(f"/messages?key=a&limit={digits}"))
    with pytest.raises(AttributeRefusal, match="limit"):
        last_values(asked(f"/topics/a/%23?limit={digits}"), "a/#")


def test_a_limit_may_have_zeros_in_front():
    assert finding(asked(f"/messages?key=a&limit=000{LIMIT_MAX}")).limit == LIMIT_MAX
    assert finding(asked("/messages?key=a")).limit == last_values(asked("/topics/a/%23"), "a/#").limit == 100
