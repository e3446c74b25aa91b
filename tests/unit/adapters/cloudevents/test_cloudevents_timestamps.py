"""RFC 3339 timestamps to milliseconds and back."""

import pytest

from adapters.cloudevents import format_ms, parse_ms


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2018-04-05T17:31:00Z", 1_522_949_460_000),
        ("2018-04-05t17:31:00z", 1_522_949_460_000),
        ("2018-04-05T17:31:00.5Z", 1_522_949_460_500),
        ("2018-04-05T17:31:00.123456789Z", 1_522_949_460_123),
        ("2018-04-05T19:31:00+02:00", 1_522_949_460_000),
        ("2018-04-05T12:01:00-05:30", 1_522_949_460_000),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),
        ("1969-12-31T23:59:59Z", -1_000),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ],
)
def test_parses(text: str, expected_ms: int) -> None:
    assert parse_ms(text) == expected_ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2018-04-05",
        "2018-04-05T17:31Z",
        "2018-04-05 17:31:00Z",
        "2018-04-05T17:31:00",
        "2018-02-30T17:31:00Z",
        "0000-01-01T00:00:00Z",
        "2018-04-05T24:00:00Z",
        "2018-04-05T17:60:00Z",
        "2018-04-05T17:31:61Z",
        "2018-04-05T17:31:00.Z",
        "2018-04-05T17:31:00+24:00",
        "2018-04-05T17:31:00Z\n",
        "\uff12018-04-05T17:31:00Z",
    ],
)
def test_refuses_what_is_no_timestamp(text: str) -> None:
    with pytest.raises(ValueError, match=r"RFC 3339|no such|day|month|year"):
        parse_ms(text)


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_522_949_460_000, "2018-04-05T17:31:00Z"),
        (1_522_949_460_050, "2018-04-05T17:31:00.050Z"),
        (-5_000, "1970-01-01T00:00:00Z"),
        (1 << 63, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_formats(time_ms: int, text: str) -> None:
    assert format_ms(time_ms) == text
