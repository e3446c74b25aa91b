"""Events delivered to sinks that nobody here wrote: the standard library's HTTP server, read by the CloudEvents SDK."""

import hashlib
import hmac
import json
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_binary_event, from_structured_event
from cryptography.x509 import DNSName, IPAddress

from tests.support.amqp.rabbitmq import MISSING, RabbitMQ
from tests.support.http.broker_sinks import AmqpSink, MqttSink
from tests.support.http.webhook_sink import Delivered, WebhookSink
from tests.support.process.certificates import Authority, Issued
from tests.support.process.gateways import GatewayProcess
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

TIMEOUT_S = 60.0
ALLOWED = '[subscriptions]\nprivate_sinks = ["127.0.0.1"]\norigin = "gateway.example.com"\n'
QUICK = {"retrymin": 0.1, "retrymax": 0.3}


@pytest.fixture
def sink() -> Iterator[WebhookSink]:
    one = WebhookSink()
    yield one
    one.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Issued:
    return issued(authority)


def issued(authority: Authority) -> Issued:
    return authority.issue("sink", IPAddress(ip_address("127.0.0.1")), server=True)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[GatewayProcess]:
    directory = tmp_path_factory.mktemp("push")
    file = directory / "push.toml"
    file.write_text(f'{ALLOWED}ca_file = "{authority.file}"\n')
    one = GatewayProcess(directory / "data", "--config", str(file)).start()
    yield one
    one.close()


@pytest.fixture
def client(gateway: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=TIMEOUT_S, trust_env=False) as opened:
        yield opened
        for one in opened.get("/subscriptions").json():
            assert opened.delete(f"/subscriptions/{one['id']}").status_code == 200


def subscribe(client: httpx.Client, sink: Any, **more: Any) -> dict[str, Any]:
    protocol = more.pop("protocol", getattr(sink, "protocol", "HTTP"))
    settings = {**QUICK, **getattr(sink, "settings", {}), **more.pop("protocolsettings", {})}
    url = more.pop("url", sink.url)
    body = {"sink": url, "protocol": protocol, "protocolsettings": settings, **more}
    answer = client.post("/subscriptions", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/subscriptions/{answer.json()['id']}"
    return answer.json()


def state(client: httpx.Client, id_: str) -> dict[str, Any]:
    return client.get(f"/subscriptions/{id_}").json()["status"]


def publish(client: httpx.Client, address: str, body: bytes, **headers: str) -> None:
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    assert client.post(f"/topics/{address}", content=body, headers=said).status_code == 201


EVENT = {
    "ce-specversion": "1.0",
    "ce-source": "/plant/7",
    "ce-type": "com.example.reading",
    "ce-colour": "rote%20Gr%C3%BCtze",
    "content-type": "application/json",
}


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_the_sdk_reads_what_a_sink_is_sent(client: httpx.Client, sink: WebhookSink, mode: str) -> None:
    settings = {"mode": mode, "headers": {"x-tenant": "a"}}
    credential = {"credentialtype": "ACCESSTOKEN", "accesstoken": "tok"}
    made = subscribe(client, sink, protocolsettings=settings, sinkcredential=credential)
    assert "accesstoken" not in made["sinkcredential"]
    assert client.post("/events", json={"celsius": 21.5}, headers={**EVENT, "ce-id": "1"}).status_code == 200
    (came,) = sink.wait_until(lambda: list(sink.came))
    assert (came.headers["x-tenant"], came.headers["authorization"]) == ("a", "Bearer tok")
    assert came.headers["webhook-request-origin"] == "gateway.example.com"
    assert sink.asked[0].headers["webhook-request-origin"] == "gateway.example.com"
    read = from_binary_event if mode == "binary" else from_structured_event
    event = read(HTTPMessage(dict(came.headers), came.body))
    assert (event.get_id(), event.get_type()) == ("1", "com.example.reading")
    assert event.get_extension("colour") == "rote Grütze"
    data = event.get_data()
    assert (json.loads(data) if isinstance(data, bytes) else data) == {"celsius": 21.5}
    assert wait_until(lambda: state(client, made["id"])["delivered"], "no status") == 1


def test_filters_sources_types_and_addresses_choose(client: httpx.Client, sink: WebhookSink) -> None:
    subscribe(
        client,
        sink,
        source="/plant/7",
        types=["a", "b"],
        config={"addresses": ["plant/#"]},
        filters=[{"any": [{"exact": {"n": "1"}}, {"sql": "n > 3"}]}, {"not": {"suffix": {"subject": "/noise"}}}],
    )
    sent = [
        ("plant/x", "/plant/7", "a", "1"),
        ("plant/x", "/plant/7", "a", "2"),
        ("plant/x", "/plant/8", "a", "1"),
        ("plant/x", "/plant/7", "c", "1"),
        ("plant/noise", "/plant/7", "b", "4"),
        ("other/x", "/plant/7", "b", "4"),
        ("plant/y", "/plant/7", "b", "4"),
    ]
    for number, (subject, source, kind, n) in enumerate(sent):
        headers = {"ce-specversion": "1.0", "ce-id": str(number), "ce-source": source, "ce-type": kind}
        answer = client.post("/events", headers={**headers, "ce-subject": subject, "ce-n": n}, content=b"x")
        assert answer.status_code == 200
    sink.wait_until(lambda: len(sink.came) == 2)
    assert {one.headers["ce-id"] for one in sink.came} == {"0", "6"}


def test_requests_are_signed_as_standard_webhooks_says(client: httpx.Client, sink: WebhookSink) -> None:
    key = bytes(range(32))
    secret = "whsec_" + b64encode(key).decode()
    made = subscribe(client, sink, protocolsettings={"signingsecret": secret})
    assert secret not in client.get(f"/subscriptions/{made['id']}").text
    publish(client, "signed/a", b"one")
    (came,) = sink.wait_until(lambda: list(sink.came))
    assert came.headers["content-type"].startswith("application/cloudevents+json")  # so that attributes are signed too
    id_, stamp = came.headers["webhook-id"], came.headers["webhook-timestamp"]
    assert abs(int(stamp) - time.time()) < TIMEOUT_S
    version, _, signature = came.headers["webhook-signature"].partition(",")
    expected = hmac.new(key, f"{id_}.{stamp}.".encode() + came.body, hashlib.sha256).digest()
    assert (version, b64decode(signature)) == ("v1", expected)


def test_each_key_is_in_order_and_a_failing_one_holds_up_no_other(client: httpx.Client, sink: WebhookSink) -> None:
    bad = {"left": 3}

    def answer(request: Delivered) -> int:
        if request.body == b"0" and request.headers["ce-partitionkey"] == "k0" and bad["left"]:
            bad["left"] -= 1
            return 422  # the event's own fault: others are still delivered
        return 200

    sink.answer = answer
    subscribe(client, sink)
    for number in range(30):
        publish(client, "order/x", b"%d" % number, ce_partitionkey=f"k{number % 3}")
    sink.wait_until(lambda: len(sink.taken) == 30)
    for key in range(3):
        found = [int(one.body) for one in sink.taken if one.headers["ce-partitionkey"] == f"k{key}"]
        assert found == list(range(key, 30, 3))
    first = next(n for n, one in enumerate(sink.taken) if one.headers["ce-partitionkey"] == "k0")
    assert first >= 5, "other keys waited for the failing one"


def test_what_a_sink_never_takes_goes_to_the_dead_letter_address(client: httpx.Client, sink: WebhookSink) -> None:
    sink.answer = lambda request: 500 if request.body == b"bad" else 400 if request.body == b"worse" else 204
    settings = {"deadletter": "dead/x", "attempts": 3}
    made = subscribe(client, sink, config={"addresses": ["live/#"]}, protocolsettings=settings)
    for body in (b"bad", b"worse", b"good"):
        publish(client, f"live/{body.decode()}", body)
    sink.wait_until(lambda: len(sink.taken) == 1)
    wait_until(lambda: state(client, made["id"])["dead"] == 2, "no dead letters")
    assert [one.body for one in sink.came].count(b"bad") == 3
    assert [one.body for one in sink.came].count(b"worse") == 1
    last = client.get("/topics/dead/x")
    assert last.content in {b"bad", b"worse"}
    assert last.headers["ce-deadlettersubscription"] == made["id"]
    assert last.headers["ce-deadletterreason"].startswith("the%20sink%20answered")


def test_a_sink_that_fails_opens_the_breaker_and_one_that_is_gone_pauses(
    client: httpx.Client, sink: WebhookSink
) -> None:
    sink.answer = lambda request: 503
    made = subscribe(client, sink, config={"addresses": ["breaker/#"]})
    for number in range(20):
        publish(client, "breaker/x", b"%d" % number, ce_partitionkey=str(number))
    wait_until(lambda: state(client, made["id"])["state"] == "failing", "the breaker stays closed")
    assert "503" in state(client, made["id"])["error"]
    before = len(sink.came)
    assert before < 40
    sink.answer = lambda request: 410
    wait_until(lambda: state(client, made["id"])["state"] == "gone", "it is not paused")
    assert "410" in state(client, made["id"])["error"]
    sink.answer = lambda request: 204
    assert client.post(f"/subscriptions/{made['id']}/resume").status_code == 200
    sink.wait_until(lambda: {int(one.body) for one in sink.taken} == set(range(20)))


def test_pause_resume_update_and_delete(client: httpx.Client, sink: WebhookSink) -> None:
    made = subscribe(client, sink)
    path = f"/subscriptions/{made['id']}"
    publish(client, "p/x", b"1")
    sink.wait_until(lambda: len(sink.taken) == 1)
    assert client.post(f"{path}/pause").json()["status"]["state"] == "paused"
    wait_until(lambda: state(client, made["id"])["state"] == "paused", "it goes on")
    publish(client, "p/x", b"2")
    publish(client, "q/x", b"3")
    other = WebhookSink()
    try:
        tag = client.get(path).headers["etag"]
        body = {"sink": other.url, "protocol": "HTTP", "config": {"addresses": ["p/#"]}, "id": made["id"]}
        assert client.put(path, json=body, headers={"if-match": '"1"'}).status_code == 412
        assert client.put(path, json=body, headers={"if-match": tag}).status_code == 200
        assert client.post(f"{path}/resume").status_code == 200
        other.wait_until(lambda: [one.body for one in other.taken] == [b"2"])
        assert [one["id"] for one in client.get("/subscriptions").json()] == [made["id"]]
        assert client.delete(path).json()["id"] == made["id"]
        assert client.get(path).status_code == client.delete(path).status_code == 404
        assert client.get("/subscriptions").json() == []
        assert [one.body for one in sink.taken] == [b"1"]
    finally:
        other.close()


def test_nothing_is_sent_without_consent_and_no_faster_than_allowed(client: httpx.Client, sink: WebhookSink) -> None:
    sink.consent = "somebody.else"
    made = subscribe(client, sink, protocolsettings={"rate": 50})
    publish(client, "c/x", b"1")
    sink.wait_until(lambda: len(sink.asked) >= 2)
    assert sink.asked[0].headers["webhook-request-rate"] == "3000"
    assert not sink.came
    status = state(client, made["id"])
    assert (status["state"], "not consented" in status["error"]) == ("pending", True)
    sink.rate = "600"  # a minute: ten a second
    sink.consent = "gateway.example.com"
    sink.wait_until(lambda: len(sink.taken) == 1)
    began = time.monotonic()
    for number in range(15):
        publish(client, "c/x", b"%d" % number, ce_partitionkey=str(number))
    sink.wait_until(lambda: len(sink.taken) == 16)
    assert time.monotonic() - began > 0.4


class HttpSink(WebhookSink):
    """A sink that takes some time for each event."""

    protocol = "HTTP"
    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__(lambda request: time.sleep(0.01) or 204)

    def ids(self) -> list[tuple[str, str]]:
        return [(one.headers["ce-partitionkey"], one.headers["ce-id"]) for one in self.taken]


def ids_of(sink: Any) -> list[tuple[str, str]]:
    """Returns the keys and ids of the events that a sink has taken."""
    if isinstance(sink, HttpSink):
        return sink.ids()
    return [(one.attributes["partitionkey"], one.attributes["id"]) for one in list(sink.came)]


@pytest.mark.parametrize("kind", ["http", "mqtt", "amqp"])
def test_kill_9_under_delivery_loses_nothing(
    new_gateway: Callable[..., Any], tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    file = tmp_path / "push.toml"
    file.write_text(ALLOWED)
    gateway = new_gateway("--config", str(file)).start()
    slow = HttpSink() if kind == "http" else request.getfixturevalue(f"{kind}_sink")
    sent: set[str] = set()
    try:
        with httpx.Client(base_url=gateway.url, timeout=TIMEOUT_S, trust_env=False) as client:
            made = subscribe(client, slow, protocolsettings={"concurrency": 4, "rate": 150})
        for round_ in range(2 if kind == "http" else 1):
            with httpx.Client(base_url=gateway.url, timeout=TIMEOUT_S, trust_env=False) as client:
                for number in range(60):
                    id_ = f"{round_}-{number}"
                    headers = {**EVENT, "ce-id": id_, "ce-partitionkey": str(number % 7)}
                    assert client.post("/events", content=b"{}", headers=headers).status_code == 200
                    sent.add(id_)
            slow.wait_until(lambda: len(ids_of(slow)) >= 20 * (round_ + 1))  # noqa: B023
            gateway.kill()
            gateway.start()
        slow.wait_until(lambda: {id_ for _, id_ in ids_of(slow)} == sent)
        first: dict[str, list[str]] = {}
        for key, id_ in ids_of(slow):
            lane = first.setdefault(key, [])
            if id_ not in lane:
                lane.append(id_)
        for lane in first.values():
            assert lane == sorted(lane, key=lambda id_: tuple(map(int, id_.split("-"))))
        with httpx.Client(base_url=gateway.url, timeout=TIMEOUT_S, trust_env=False) as client:
            assert state(client, made["id"])["state"] in {"active", "pending"}
    finally:
        if kind == "http":
            slow.close()


# ---- brokers


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory, authority: Authority, certificate: Issued) -> Iterator[RabbitMQ]:
    if MISSING:
        pytest.skip(MISSING)
    broker = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"), certificate, authority.file).start()
    yield broker
    broker.close()


@pytest.fixture
def mqtt_sink(tmp_path: Path, certificate: Issued) -> Iterator[MqttSink]:
    if MqttSink.missing:
        pytest.skip(MqttSink.missing)
    one = MqttSink(tmp_path, certificate=certificate)
    yield one
    one.close()


@pytest.fixture
def amqp_sink(rabbitmq: RabbitMQ) -> Iterator[AmqpSink]:
    one = AmqpSink(rabbitmq)
    yield one
    one.close()


@pytest.mark.parametrize("kind", ["mqtt", "amqp"])
def test_clients_of_a_broker_read_the_events(client: httpx.Client, request: pytest.FixtureRequest, kind: str) -> None:
    broker = request.getfixturevalue(f"{kind}_sink")
    modes = ["binary", "structured", *["3.1.1"] * (kind == "mqtt")]
    for mode in modes:
        settings: dict[str, Any] = {"mode": mode}
        if mode == "binary" and kind == "mqtt":
            settings |= {"userproperties": {"tenant": "a"}, "expiry": 60, "qos": 2}
        more = {"protocol": "MQTT3", "protocolsettings": {}} if mode == "3.1.1" else {"protocolsettings": settings}
        made = subscribe(client, broker, config={"addresses": [f"read/{mode}"]}, **more)
        headers = {**EVENT, "ce-id": mode, "ce-subject": f"read/{mode}"}
        assert client.post("/events", json={"celsius": 21.5}, headers=headers).status_code == 200
        broker.wait_until(lambda: len(broker.came) == 1 + modes.index(mode))  # noqa: B023
        came = broker.came[-1]
        assert came.structured == (mode != "binary")
        said = came.attributes
        assert (said["id"], said["type"], said["source"]) == (mode, "com.example.reading", "/plant/7")
        assert (said["colour"], said["datacontenttype"]) == ("rote Grütze", "application/json")
        assert json.loads(came.data) == {"celsius": 21.5}
        if kind == "mqtt":
            assert came.raw.topic == f"sink/read/{mode}"
            assert came.attributes.get("tenant") == ("a" if mode == "binary" else None)
        else:
            assert came.raw[0].routing_key == f"sink.read.{mode}"
        assert wait_until(lambda: state(client, made["id"])["delivered"], "no status") == 1  # noqa: B023


def test_a_broker_that_is_away_gets_its_events_when_it_is_back(client: httpx.Client, mqtt_sink: MqttSink) -> None:
    made = subscribe(client, mqtt_sink, config={"addresses": ["away/#"]})
    publish(client, "away/x", b"1", ce_id="1")
    mqtt_sink.wait_until(lambda: len(mqtt_sink.came) == 1)
    mqtt_sink.reader.close()
    mqtt_sink.broker.kill()
    for number in range(2, 12):
        publish(client, "away/x", b"%d" % number, ce_id=str(number))
    wait_until(lambda: state(client, made["id"])["error"], "the status does not report the failure")
    mqtt_sink.broker.start()
    mqtt_sink.read()
    mqtt_sink.wait_until(lambda: {one.data for one in mqtt_sink.came} == {b"%d" % number for number in range(1, 12)})


def test_a_broker_that_refuses_says_why_and_its_secrets_stay(client: httpx.Client, amqp_sink: AmqpSink) -> None:
    credential = {"credentialtype": "PLAIN", "identifier": "guest", "secret": "not-it"}
    made = subscribe(client, amqp_sink, sinkcredential=credential)
    wait_until(lambda: "ACCESS_REFUSED" in state(client, made["id"])["error"], "the refusal is not said")
    shown = client.get(f"/subscriptions/{made['id']}")
    assert shown.json()["status"]["state"] == "pending"
    assert "not-it" not in shown.text
    settings = {"routingkey": "nowhere", "deadletter": "dead/amqp", "attempts": 2}
    lost = subscribe(client, amqp_sink, config={"addresses": ["unroutable/#"]}, protocolsettings=settings)
    publish(client, "unroutable/x", b"x")
    wait_until(lambda: state(client, lost["id"])["dead"] == 1, "no dead letter")
    assert client.get("/topics/dead/amqp").headers["ce-deadletterreason"].startswith("no%20queue")


@pytest.mark.parametrize("kind", ["mqtt", "amqp"])
def test_brokers_over_tls_whose_authority_is_private_are_sent_events(
    client: httpx.Client, request: pytest.FixtureRequest, kind: str
) -> None:
    broker = request.getfixturevalue(f"{kind}_sink")
    made = subscribe(client, broker, url=broker.tls_url, config={"addresses": ["tls/#"]})
    publish(client, "tls/x", b"1", ce_id="1")
    broker.wait_until(lambda: [one.data for one in broker.came] == [b"1"])
    wait_until(lambda: state(client, made["id"])["state"] == "active", "it is not said")


@pytest.mark.parametrize("wrong", ["authority", "name"])
@pytest.mark.parametrize("kind", ["mqtt", "http"])
def test_a_certificate_of_another_authority_or_name_is_refused_and_said(
    client: httpx.Client, authority: Authority, tmp_path: Path, kind: str, wrong: str
) -> None:
    """Nothing is sent, not the password either, and the status says why."""
    if wrong == "authority":
        certificate = issued(Authority(tmp_path / "other", "other"))
    else:
        certificate = authority.issue("elsewhere", DNSName("elsewhere.example"), server=True)
    if kind == "mqtt" and MqttSink.missing:
        pytest.skip(MqttSink.missing)
    sink = MqttSink(tmp_path, certificate=certificate) if kind == "mqtt" else WebhookSink(certificate=certificate)
    try:
        made = subscribe(client, sink, url=sink.tls_url, config={"addresses": ["refused/#"]})
        publish(client, "refused/x", b"1", ce_id="1")
        error = wait_until(lambda: state(client, made["id"])["error"], "nothing is said")
        assert "the sink's certificate is refused" in error
        assert ("subscriptions.ca_file" in error, state(client, made["id"])["state"]) == (True, "pending")
        assert not sink.came
    finally:
        sink.close()


def test_a_webhook_whose_authority_is_private_is_sent_events(client: httpx.Client, certificate: Issued) -> None:
    sink = WebhookSink(certificate=certificate)
    try:
        subscribe(client, sink, url=sink.tls_url, config={"addresses": ["private/#"]})
        publish(client, "private/x", b"1", ce_id="1")
        sink.wait_until(lambda: [one.body for one in sink.taken] == [b"1"])
    finally:
        sink.close()


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"sink": "https://10.0.0.1/", "protocol": "HTTP"}, 403, "private network"),
        ({"sink": "https://[::1]/", "protocol": "HTTP"}, 403, "this machine"),
        ({"sink": "https://[::ffff:10.0.0.1]/", "protocol": "HTTP"}, 403, "private network"),
        ({"sink": "https://169.254.169.254/latest", "protocol": "HTTP"}, 403, "private network"),
        ({"sink": "https://localhost/", "protocol": "HTTP"}, 403, "this machine"),
        ({"sink": "https://2130706434/", "protocol": "HTTP"}, 403, "this machine"),
        ({"sink": "http://example.com/", "protocol": "HTTP"}, 403, "https"),
        ({"sink": "ftp://example.com/", "protocol": "HTTP"}, 400, "sink"),
        ({"sink": "https://u:p@example.com/", "protocol": "HTTP"}, 400, "sinkcredential"),
        ({"sink": "https://example.com/", "protocol": "MQTT5"}, 400, "mqtts"),
        ({"sink": "https://example.com/", "protocol": "AMQP"}, 400, "AMQP091"),
        ({"sink": "mqtts://10.0.0.1", "protocol": "MQTT5", "protocolsettings": {"topicname": "a"}}, 403, "private"),
        ({"sink": "amqps://localhost", "protocol": "AMQP091"}, 403, "this machine"),
        ({"sink": "mqtt://example.com", "protocol": "MQTT5", "protocolsettings": {"topicname": "a"}}, 403, "mqtts"),
        ({"sink": "mqtts://example.com", "protocol": "MQTT5"}, 400, "topicname"),
        (
            {"sink": "mqtts://example.com", "protocol": "MQTT5", "protocolsettings": {"topicname": "{x}"}},
            400,
            "{address}",
        ),
        ({"sink": "mqtts://example.com/a", "protocol": "MQTT5", "protocolsettings": {"topicname": "a"}}, 400, "path"),
        (
            {"sink": "mqtts://example.com", "protocol": "MQTT3", "protocolsettings": {"topicname": "a", "expiry": 1}},
            400,
            "expiry",
        ),
        (
            {"sink": "mqtts://example.com", "protocol": "MQTT5", "protocolsettings": {"topicname": "a", "qos": 3}},
            400,
            "qos",
        ),
        ({"sink": "amqps://example.com", "protocol": "AMQP091", "protocolsettings": {"method": "PUT"}}, 400, "method"),
        ({"sink": "amqps://example.com/a/b", "protocol": "AMQP091"}, 400, "virtual host"),
        ({"sink": "https://example.com/"}, 400, "protocol"),
        ({"sink": "https://example.com/", "protocol": "HTTP", "nosuch": 1}, 400, "nosuch"),
        ({"sink": "https://example.com/", "protocol": "HTTP", "filters": [{"sql": "id ="}]}, 400, "filters[0].sql"),
        ({"sink": "https://example.com/", "protocol": "HTTP", "filters": [{"regex": {}}]}, 400, "dialect"),
        ({"sink": "https://example.com/", "protocol": "HTTP", "config": {"addresses": ["a/#/b"]}}, 400, "addresses"),
        ({"sink": "https://example.com/", "protocol": "HTTP", "protocolsettings": {"attempts": 3}}, 400, "attempts"),
        (
            {"sink": "https://example.com/", "protocol": "HTTP", "protocolsettings": {"headers": {"Host": "x"}}},
            400,
            "headers",
        ),
        (
            {"sink": "https://example.com/", "protocol": "HTTP", "protocolsettings": {"deadletter": "a"}},
            400,
            "deadletter",
        ),
        (
            {"sink": "https://example.com/", "protocol": "HTTP", "protocolsettings": {"signingsecret": "x"}},
            400,
            "signingsecret",
        ),
    ],
)
def test_what_no_subscription_can_be(shared_gateway: Any, body: dict[str, Any], status: int, words: str) -> None:
    with httpx.Client(base_url=shared_gateway.url, timeout=TIMEOUT_S, trust_env=False) as client:
        answer = client.post("/subscriptions", json=body)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert words in answer.json()["detail"]
        assert client.get("/subscriptions").json() == []


def test_sinks_that_do_not_answer_hold_up_no_other_subscription(
    new_gateway: Callable[..., Any], tmp_path: Path, sink: WebhookSink
) -> None:
    file = tmp_path / "few.toml"
    file.write_text(f"{ALLOWED}attempts_max = 4\n")
    gateway = new_gateway("--config", str(file)).start()
    silent, ended = WebhookSink(), threading.Event()
    silent.answer = lambda request: 204 if ended.wait(2 * TIMEOUT_S) else 500
    try:
        with httpx.Client(base_url=gateway.url, timeout=TIMEOUT_S, trust_env=False) as client:
            subscribe(client, silent, protocolsettings={"concurrency": 16, "timeout": 3_600})
            for number in range(8):
                publish(client, "x/y", b"1", ce_partitionkey=str(number))
            wait_until(lambda: silent.begun >= 5, "the sink that does not answer has not all that it may have")
            subscribe(client, sink, config={"addresses": ["good/#"]})
            for number in range(8):
                publish(client, "good/y", b"%d" % number, ce_partitionkey=str(number))
            sink.wait_until(lambda: {int(one.body) for one in sink.taken} == set(range(8)))
            assert silent.begun == 5
    finally:
        ended.set()
        silent.close()


def test_another_gateway_is_a_sink_that_consents(
    client: httpx.Client, new_gateway: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "other.toml"
    file.write_text('[adapters.http]\nwebhook_origins = ["gateway.example.com"]\nevent_window_s = 3600\n')
    other = new_gateway("--config", str(file)).start()
    body = {"sink": f"{other.url}/events", "protocol": "HTTP", "config": {"addresses": ["across/#"]}}
    assert client.post("/subscriptions", json={**body, "protocolsettings": QUICK}).status_code == 201
    for number in range(50):
        headers = {**EVENT, "ce-id": str(number), "ce-subject": "across/x", "ce-partitionkey": "k"}
        assert client.post("/events", content=b"%d" % number, headers=headers).status_code == 200
    with httpx.Client(base_url=other.url, timeout=TIMEOUT_S, trust_env=False) as there:
        wait_until(lambda: there.get("/topics/across/x").text == "49", "not all have come")
        last = there.get("/topics/across/x")
    assert (last.headers["ce-source"], last.headers["ce-colour"]) == ("/plant/7", "rote%20Gr%C3%BCtze")


def test_gateways_that_send_each_other_events_over_mqtt_have_each_once(
    client: httpx.Client, gateway: GatewayProcess, new_gateway: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "other.toml"
    file.write_text(ALLOWED)
    other = new_gateway("--config", str(file)).start()
    with httpx.Client(base_url=other.url, timeout=TIMEOUT_S, trust_env=False) as there:
        settings = {**QUICK, "topicname": "{address}"}
        body = {"protocol": "MQTT5", "config": {"addresses": ["round/#"]}, "protocolsettings": settings}
        back = there.post("/subscriptions", json={**body, "sink": f"mqtt://127.0.0.1:{gateway.port('mqtt')}"}).json()
        answer = client.post("/subscriptions", json={**body, "sink": f"mqtt://127.0.0.1:{other.port('mqtt')}"})
        assert answer.status_code == 201
        for number in range(20):
            headers = {**EVENT, "ce-id": str(number), "ce-subject": "round/x"}
            assert client.post("/events", content=b"%d" % number, headers=headers).status_code == 200
        wait_until(lambda: state(there, back["id"])["looped"] == 20, "not all are known to have been here")
        assert state(there, back["id"])["delivered"] == 0
        last = there.get("/topics/round/x")
        assert (last.text, last.headers["ce-source"], last.headers["ce-id"]) == ("19", "/plant/7", "19")
