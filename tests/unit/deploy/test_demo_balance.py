"""The demonstration's bookkeeping: marks, the balance, and what is shown of them."""

import io
import random

import pytest
from rich.console import Console

from deploy.demo import view
from deploy.demo.__main__ import main
from deploy.demo.balance import Row, faults, rows
from deploy.demo.plan import AT_MOST_ONCE, DEVICES, FLEETS, Readings, Seen, Target
from deploy.demo.session_seen import SessionSeen
from gateway.ops.status import LogStatus, Status


def test_readings_are_told_apart_and_counted_up_by_device():
    readings = Readings("mqtt", "ab12")
    taken = [readings.take() for _ in range(2 * DEVICES)]
    assert taken[0].mark == "ab12/mqtt-1/0"
    assert taken[DEVICES].mark == "ab12/mqtt-1/1"
    assert taken[0].address == "telemetry/mqtt/mqtt-1/temperature"
    assert len({one.mark for one in taken}) == len(taken)
    assert readings.take(3).mark == "ab12/mqtt-4/2"


def test_seen_counts_each_message_once_in_any_order_and_forgets_the_floor():
    readings = Readings("coap", "ab12")
    bodies = [readings.take().body for _ in range(600)]
    seen = Seen("ab12")
    random.Random(3).shuffle(bodies)
    for body in [*bodies, *bodies[:50]]:
        seen.add(body)
    assert (seen.by_fleet["coap"], seen.total, seen.repeats) == (600, 600, 50)
    assert not any(seen._above.values())


def test_seen_passes_over_other_runs_and_finds_marks_wherever_they_are():
    seen = Seen("ab12")
    seen.add(b'data: {"data": {"id": "ab12/amqp-2/7", "x": "ab12/http-1/0"}}')
    seen.add(b'{"id": "ffff/amqp-2/8"}')
    seen.add(b"\xff\x00")
    assert (seen.by_fleet["amqp"], seen.by_fleet["http"], seen.total) == (1, 1, 2)


def row(**changes) -> Row:
    return Row(**{"fleet": "mqtt", "acked": 10, "unknown": 0, "refused": 0, "logged": 10, "counted": 10} | changes)


def test_what_balances():
    read = {"MQTT 5 session": {"mqtt": 10}}
    assert faults([row()], read, 0) == []
    assert faults([row(counted=None)], read, 0) == []
    assert faults([row(acked=8, unknown=3)], read, 0) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"logged": 9, "counted": 9}, "mqtt: 1 acknowledged messages are not in the log"),
        ({"logged": 12, "counted": 12, "unknown": 1}, "mqtt: 1 messages are in the log unasked"),
        ({"counted": 4}, "mqtt: Spark has counted 4 of 10 messages"),
        ({"acked": 0, "logged": 0, "counted": 0}, "mqtt: nothing was acknowledged"),
    ],
)
def test_what_does_not(changes, line):
    assert faults([row(**changes)], {}, 0) == [line]
    assert row(**changes).balanced is (line.endswith("nothing was acknowledged"))


def test_repeats_and_readers_that_missed_something_do_not_balance():
    assert faults([row()], {"AMQP queue": {"mqtt": 9}}, 2) == [
        "2 messages are in the log twice",
        "AMQP queue: read 9 of 10 messages of mqtt",
    ]


def test_rows_of_reports():
    found = rows({"coap": {"acked": 3, "unknown": 1, "refused": 0}}, {"coap": 4}, {"coap": 2})
    assert found == [Row("coap", 3, 1, 0, 4, 2)]
    assert rows({"coap": {}}, {}, None)[0].counted is None


def scene() -> view.Scene:
    return view.Scene(
        elapsed_s=5.2,
        rows=[row()],
        rates={"mqtt": 400.4},
        readers={"AMQP queue": 10},
        status=Status(version="1", ready=True, log=LogStatus(end=7000, confirmed=7000), connections={"mqtt": 3}),
        spark="batch 3",
        aggregates=[view.Aggregate("mqtt-1", "temperature", 7, 21.5, 22.0)],
    )


def shown(thing, **options) -> str:
    stream = io.StringIO()
    Console(file=stream, width=110, color_system=None, **options).print(thing)
    return stream.getvalue()


def test_the_live_picture_has_everything():
    text = shown(view.live(scene()))
    for part in ("7,000 bytes", "3 connections", "mqtt", "400", "AMQP queue 10", "batch 3", "mqtt-1", "21.50"):
        assert part in text


def test_the_line_has_the_same():
    assert view.line(scene()) == (
        "5 s: 400 messages/s, 10 acknowledged, 10 in the log (at byte 7,000), read back: AMQP queue 10; Spark: batch 3"
    )


@pytest.mark.parametrize("held", [True, False])
def test_the_summary(held):
    stream = io.StringIO()
    console = Console(file=stream, width=110, color_system=None)
    view.summary(console, [row()], {"AMQP queue": 10}, [], held=held)
    assert ("balances: 10 messages published = in the log = counted by Spark" in stream.getvalue()) is held
    view.summary(console, [row(logged=3)], {}, ["mqtt: [odd] thing"], held=True)
    assert "DOES NOT BALANCE" in stream.getvalue()
    assert "does not balance: mqtt: [odd] thing" in stream.getvalue()


def test_ports_follow_the_offset():
    target = Target(port_offset=100)
    assert (target.mqtt, target.coap, target.amqp) == (1983, 5783, 5772)
    assert (target.http, target.rpc, target.admin) == (
        "http://127.0.0.1:8180",
        "127.0.0.1:8181",
        "http://127.0.0.1:8188",
    )


@pytest.mark.parametrize("args", [["--for", "soon"], ["--for", "0s"], ["--fleets", "mqtt,x"], ["--nope"]])
def test_wrong_usage_is_code_2(args, capsys):
    with pytest.raises(SystemExit) as ended:
        main(args)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_every_fleet_has_its_clients():
    for fleet in FLEETS:
        assert __import__(f"deploy.demo.{fleet}_clients", fromlist=["run"]).run


QOS_0, QOS_1 = 0, 1  # devices of the MQTT fleet, by their index


def series(device: int, count: int) -> list[bytes]:
    readings = Readings("mqtt", "ab12")
    return [readings.take(device).body for _ in range(count)]


def balance_of(log: Seen, session: SessionSeen, acked: int) -> list[str]:
    found = rows({"mqtt": {"acked": acked}}, log.by_fleet, None)
    return faults(found, {"session": session.by_fleet}, log.repeats, {"session": session.missed_by_fleet})


def away(session: SessionSeen, bodies: list[bytes], unread: set[int], leaves: int) -> None:
    """Reads all messages but `unread`, and goes away once in front of `leaves`."""
    for n, body in enumerate(bodies):
        if n == leaves:
            session.left()
        if n not in unread:
            session.add(body)


@pytest.mark.parametrize(
    ("device", "unread", "fault"),
    [
        (QOS_0, set(), None),
        (QOS_0, {50}, None),  # sent to the connection that it left
        (QOS_0, {50, 51, 52}, None),
        (QOS_0, {40}, "session: read 99 of 100 messages of mqtt"),  # read on both sides in one connection
        (QOS_0, {40, 50}, "session: read 98 of 99 messages of mqtt"),
        (QOS_0, {99}, "session: read 99 of 100 messages of mqtt"),
        (QOS_1, {50}, "session: read 99 of 100 messages of mqtt"),
    ],
)
def test_a_session_may_miss_what_was_sent_at_qos_0_to_a_connection_it_left_and_nothing_else(device, unread, fault):
    log, session, bodies = Seen("ab12"), SessionSeen("ab12"), series(device, 100)
    for body in bodies:
        log.add(body)
    away(session, bodies, unread, leaves=50)
    assert balance_of(log, session, 100) == ([] if fault is None else [fault])


def test_a_record_of_qos_1_that_the_log_lost_is_said():
    log, session, bodies = Seen("ab12"), SessionSeen("ab12"), series(QOS_1, 100)
    away(session, bodies, {50}, leaves=50)
    for body in bodies[:50] + bodies[51:]:
        log.add(body)
    assert balance_of(log, session, 100) == ["mqtt: 1 acknowledged messages are not in the log"]


def test_many_absences_are_added_up_and_nothing_is_kept_of_them():
    session, bodies = SessionSeen("ab12"), series(QOS_0, 1_000)
    for n, body in enumerate(bodies):
        if n % 100 == 99:
            session.left()
        else:
            session.add(body)
    assert session.missed_by_fleet == {"mqtt": 9}  # no message came after the tenth
    assert session.by_fleet["mqtt"] == 990
    session.add(series(QOS_0, 1_001)[-1])
    assert session.missed_by_fleet == {"mqtt": 10}
    session.left()
    assert not any(session._above.values())


def test_every_device_of_qos_0_is_one_of_a_fleet():
    assert all(fleet in FLEETS and 1 <= device <= DEVICES for fleet, device in AT_MOST_ONCE)
    assert {device for fleet, device in AT_MOST_ONCE if fleet == "mqtt"} == {
        index + 1 for index in range(DEVICES) if index % 3 == 0
    }
