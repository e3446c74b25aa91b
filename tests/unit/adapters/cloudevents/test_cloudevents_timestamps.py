"""RFC 3339 timestamps to milliseconds and back."""

import pytest

from adapters.cloudevents import canonical_ms, format_ms, parse_ms, timestamps


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


@pytest.mark.parametrize(
    "text",
    [
        "1970-01-01T00:00:00Z",
        "2018-04-05T17:31:09Z",
        "2018-04-05T17:31:59.050Z",
        "2018-04-05T17:31:00.001Z",
        "9999-12-31T23:59:59.999Z",
    ],
)
def test_a_time_that_is_written_as_ours_are_is_read_by_its_minute(text: str) -> None:
    assert canonical_ms(text) == parse_ms(text)
    assert canonical_ms(text) == parse_ms(text)  # of a minute that is known


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2018-04-05T17:31:",
        "2018-04-05T17:31:0",
        "2018-04-05T17:31:00",
        "2018-04-05T17:31:00z",
        "2018-04-05t17:31:00Z",
        "2018-04-05T17:31:00.000Z",
        "2018-04-05T17:31:00.5Z",
        "2018-04-05T17:31:00.0500Z",
        "2018-04-05T17:31:00,050Z",
        "2018-04-05T17:31:00ZZ",
        "2018-04-05T17:31:60Z",
        "2018-04-05T17:31:+1Z",
        "2018-04-05T17:31:\u0661\u0662Z",
        "2018-04-05T17:31:00+00:00",
        "2018-02-30T17:31:00Z",
        "1969-12-31T23:59:59Z",
    ],
)
def test_a_time_that_is_written_otherwise_is_left_to_the_parser(text: str) -> None:
    canonical_ms("2018-04-05T17:31:00Z")  # the minute is known
    assert canonical_ms(text) is None


def test_no_more_minutes_are_kept_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timestamps, "MINUTES_MAX", 10)
    monkeypatch.setattr(timestamps, "_minutes", {})
    for n in range(35):
        text = format_ms(n * 60_000 + 1)
        assert canonical_ms(text) == n * 60_000 + 1
        assert len(timestamps._minutes) <= 10
