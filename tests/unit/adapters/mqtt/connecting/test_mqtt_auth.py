"""AUTH in the words of MQTT 5.0, 4.12 and 3.15: who may say what when, and what becomes of the others."""

import pytest

from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packets import Auth, Connack, Connect, Disconnect, Pingreq, Pingresp, Publish, Subscribe, Will
from adapters.mqtt.codec.packets import SubscriptionRequest as Asked
from adapters.mqtt.codec.properties import Properties
from adapters.mqtt.codec.reason import ReasonCode as Code
from adapters.mqtt.connecting.authentication import DATA_BYTES_MAX, ROUNDS_COUNT_MAX
from adapters.mqtt.messages.options import Options
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Authenticate, Challenge, Outcome
from gateway.port.sessions import DropWill, OpenedSession, OpenSession
from gateway.security.scram import MECHANISM
from tests.support.mqtt.mqtt_driver import Driver
from tests.support.mqtt.mqtt_scram import CONTINUE, REAUTHENTICATE, ScramDriver, auth, said


def connected(**fields):
    driver = ScramDriver(**fields)
    assert driver.join().code == 0
    return driver


def ended(packets, code):
    """Returns whether the client's last word is a DISCONNECT or CONNACK with a code."""
    return isinstance(packets[-1], Disconnect | Connack) and packets[-1].code == code


# ---- at the CONNECT


def test_a_password_is_proven_by_both_sides():
    driver, client = ScramDriver(), ScramDriver().client()
    (challenge,) = driver.begin(client, username="user")
    assert isinstance(challenge, Auth)
    assert (challenge.code, challenge.properties.authentication_method) == (CONTINUE, MECHANISM)  # MQTT-4.12.0-2, -5
    (connack,) = driver.prove(client, challenge)
    assert (connack.code, connack.properties.authentication_method) == (0, MECHANISM)  # MQTT-4.12.0-5
    client.set_server_final(connack.properties.authentication_data.decode())
    assert driver.asked is not None
    assert [one.username for one in driver.asks] == ["user", "user"]
    assert driver.send(Pingreq()) == [Pingresp()]


def test_messages_of_a_proven_client_are_of_its_name():
    driver = connected()
    driver.send(Publish(topic="a", payload=b""))
    assert [message.device for message in driver.published()] == ["user"]


def test_the_client_may_leave_the_first_word_to_the_server():
    driver, client = ScramDriver(), ScramDriver().client()
    (empty,) = driver.send(Connect(version=5, client_id="c1", properties=said(None)))
    assert (empty.code, empty.properties) == (CONTINUE, said(None))
    (challenge,) = driver.send(auth(client.get_client_first().encode()))
    (connack,) = driver.prove(client, challenge)
    assert connack.code == 0


def test_a_wrong_password_is_refused_and_the_connection_closed():
    driver = ScramDriver()
    connack = driver.join(driver.client(password="pen"))
    assert connack.code == Code.NOT_AUTHORIZED  # MQTT-4.12.0-4
    assert connack.properties.authentication_method is None
    assert driver.closed == "wrong name or password"
    assert driver.calls(OpenSession) == []


@pytest.mark.parametrize("data", [b"", b"x", b"\xff", b"n,,", b"n,,n=user", b"p=tls-unique,,n=user,r=x", bytes(1_025)])
def test_words_that_are_no_scram_are_refused(data):
    driver = ScramDriver()
    first = driver.send(Connect(version=5, client_id="c1", properties=said(b"?")))
    assert ended(first, Code.NOT_AUTHORIZED)
    other = ScramDriver()
    (challenge,) = other.begin(other.client())
    assert challenge.code == CONTINUE
    assert ended(other.send(auth(data)), Code.NOT_AUTHORIZED)


@pytest.mark.parametrize("method", ["", "SCRAM-SHA-1", "scram-sha-256", "PLAIN", "JWT"])
def test_a_method_that_is_not_offered(method):
    driver = ScramDriver()
    (connack,) = driver.send(Connect(version=5, client_id="c1", properties=said(b"", method)))
    assert connack.code == Code.BAD_AUTHENTICATION_METHOD  # MQTT-4.12.0-1
    assert driver.closed is not None
    assert driver.asks == []


def test_an_operator_may_turn_it_off():
    driver = ScramDriver(options=Options(authentication_methods=()))
    assert ended(driver.begin(driver.client()), Code.BAD_AUTHENTICATION_METHOD)


@pytest.mark.parametrize(
    "packet",
    [
        auth(b"x", CONTINUE, "SCRAM-SHA-1"),
        auth(b"x", CONTINUE, None),
        auth(b"x", REAUTHENTICATE),
        auth(b"x", 0x00),
        auth(None, 0x00, None),
        auth(b"x", 0x80),
        Pingreq(),
        Subscribe(packet_id=1, requests=(Asked(pattern="a"),)),
        Connect(version=5, client_id="c1"),
    ],
)
def test_what_may_not_come_between_connect_and_connack(packet):
    """MQTT-4.12.0-3, 4.12.0-5, 3.1.2-30, 3.15.2.1."""
    driver = ScramDriver()
    driver.begin(driver.client())
    assert ended(driver.send(packet), Code.PROTOCOL_ERROR)
    assert driver.closed is not None


def test_a_disconnect_may_come_between_connect_and_connack():
    driver = ScramDriver()
    driver.begin(driver.client())
    assert driver.send(Disconnect()) == []
    assert driver.closed == ""


def test_words_that_come_cut_anywhere():
    driver, client = ScramDriver(), ScramDriver().client()
    (challenge,) = driver.begin(client)
    client.set_server_first(challenge.properties.authentication_data.decode())
    encoded = encode(auth(client.get_client_final().encode()), 5)
    for at in range(len(encoded)):
        assert driver.out() == []
        driver.feed(encoded[at : at + 1])
    (connack,) = driver.out()
    assert connack.code == 0


@pytest.mark.parametrize("early", [Pingreq(), auth(b"x")])
def test_nothing_may_come_ahead_of_the_connack(early):
    """MQTT-3.1.2-30, however fast the client is."""
    driver, client = ScramDriver(), ScramDriver().client()
    (challenge,) = driver.begin(client)
    client.set_server_first(challenge.properties.authentication_data.decode())
    assert ended(driver.send(auth(client.get_client_final().encode()), early), Code.PROTOCOL_ERROR)
    assert driver.asked is None


def test_nothing_may_come_while_the_session_is_opened():
    driver, client = ScramDriver(), ScramDriver().client()
    (challenge,) = driver.begin(client)
    driver.opened = None  # the gateway takes its time
    assert driver.prove(client, challenge) == []
    (opening,) = driver.calls(OpenSession)
    driver.feed(encode(Pingreq(), 5))
    assert ended(driver.complete(opening, Outcome(error=Refusal(Cause.UNAVAILABLE))), Code.SERVER_UNAVAILABLE)


def test_a_will_is_not_published_for_a_client_that_never_was_connected():
    driver, client = ScramDriver(), ScramDriver().client()
    (challenge,) = driver.begin(client, will=Will(topic="w", payload=b""))
    driver.opened = None
    driver.prove(client, challenge)
    (opening,) = driver.calls(OpenSession)
    driver.feed(encode(Pingreq(), 5))
    assert ended(driver.complete(opening, Outcome(value=OpenedSession(present=False))), Code.PROTOCOL_ERROR)
    assert len(driver.calls(DropWill)) == 1


def test_the_time_for_connect_is_the_time_for_all_of_it():
    driver = ScramDriver()
    driver.begin(driver.client())
    assert driver.adapter.deadline_ms() == driver.now_ms + 10_000
    driver.tick(9_999)
    assert driver.closed is None
    driver.tick(1)
    assert driver.closed == "no AUTH in time"


@pytest.mark.parametrize("data", [bytes(DATA_BYTES_MAX + 1)])
def test_data_that_no_mechanism_needs(data):
    driver = ScramDriver()
    assert ended(driver.send(Connect(version=5, client_id="c1", properties=said(data))), Code.NOT_AUTHORIZED)
    assert driver.asks == []


def test_a_packet_larger_than_a_stranger_may_send():
    driver = ScramDriver(options=Options(connect_bytes_max=128))
    driver.begin(driver.client())
    driver.feed(encode(auth(bytes(200)), 5)[:8])  # its length is enough to know
    assert ended(driver.out(), Code.PACKET_TOO_LARGE)


def test_an_exchange_comes_to_an_end():
    driver = ScramDriver()
    driver.authenticate = lambda request: Outcome(value=Challenge(data=b"more", exchange=None))
    packets = driver.begin(driver.client())
    rounds = 0
    while isinstance(packets[-1], Auth):
        rounds += 1
        packets = driver.send(auth(b"more"))
    assert rounds == ROUNDS_COUNT_MAX
    assert ended(packets, Code.NOT_AUTHORIZED)


def test_a_client_that_takes_no_packet_as_large_is_let_go():
    driver = ScramDriver()
    properties = Properties(authentication_method=MECHANISM, authentication_data=b"n,,n=u,r=x", maximum_packet_bytes=20)
    assert driver.send(Connect(version=5, client_id="c1", properties=properties)) == [
        Connack(code=Code.PACKET_TOO_LARGE)
    ]
    assert driver.closed is not None


@pytest.mark.parametrize(("cause", "code"), [(Cause.OVERLOAD, Code.SERVER_BUSY), (Cause.QUOTA, Code.QUOTA_EXCEEDED)])
def test_other_refusals_keep_their_codes(cause, code):
    driver = ScramDriver()
    driver.authenticate = lambda request: Outcome(error=Refusal(cause))
    assert ended(driver.begin(driver.client()), code)


# ---- on a live connection


def test_who_it_is_can_be_proven_again_while_all_goes_on():
    driver, client = connected(), ScramDriver().client()
    (challenge,) = driver.send(auth(client.get_client_first().encode(), REAUTHENTICATE))
    assert (challenge.code, challenge.properties.authentication_method) == (CONTINUE, MECHANISM)
    assert driver.send(Pingreq()) == [Pingresp()]
    (done,) = driver.prove(client, challenge)
    assert (done.code, done.properties.authentication_method) == (0, MECHANISM)
    client.set_server_final(done.properties.authentication_data.decode())
    (again,) = driver.send(auth(ScramDriver().client().get_client_first().encode(), REAUTHENTICATE))
    assert again.code == CONTINUE
    assert driver.closed is None


@pytest.mark.parametrize(("name", "password"), [("user", "pen"), ("other", "pencil")])
def test_who_cannot_prove_it_again_or_is_somebody_else_is_disconnected(name, password):
    driver = connected()
    client = driver.client(name, password)
    (challenge,) = driver.send(auth(client.get_client_first().encode(), REAUTHENTICATE))
    assert ended(driver.prove(client, challenge), Code.NOT_AUTHORIZED)  # MQTT-4.12.1-2
    assert driver.closed is not None


@pytest.mark.parametrize(
    "packet",
    [
        auth(b"x", CONTINUE),
        auth(b"x", 0x00),
        auth(b"x", REAUTHENTICATE, "SCRAM-SHA-1"),  # MQTT-4.12.1-1
        auth(b"x", REAUTHENTICATE, None),
        Auth(code=REAUTHENTICATE),
        Auth(),
    ],
)
def test_an_auth_that_has_no_place(packet):
    driver = connected()
    assert ended(driver.send(packet), Code.PROTOCOL_ERROR)


def test_a_second_beginning_has_no_place():
    driver = connected()
    driver.send(auth(driver.client().get_client_first().encode(), REAUTHENTICATE))
    assert ended(driver.send(auth(b"x", REAUTHENTICATE)), Code.PROTOCOL_ERROR)


def test_an_auth_while_the_gateway_thinks_has_no_place():
    driver = connected()
    driver.held_back = True
    assert driver.send(auth(driver.client().get_client_first().encode(), REAUTHENTICATE)) == []
    assert driver.send(Pingreq()) == [Pingresp()]
    assert ended(driver.send(auth(b"x", CONTINUE)), Code.PROTOCOL_ERROR)
    (late,) = driver.calls(Authenticate)
    assert driver.complete(late, Outcome(value=Principal(name="user"))) == []


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_without_a_method_sends_no_auth(version):
    """MQTT-4.12.0-6, 4.12.0-7."""
    driver = Driver(version)
    connack = driver.connect()
    assert (connack.properties.authentication_method, connack.properties.authentication_data) == (None, None)
    driver.feed(encode(auth(b"x", REAUTHENTICATE), 5))
    if version == 5:
        assert ended(driver.out(), Code.PROTOCOL_ERROR)
    assert driver.closed is not None


def test_proving_it_again_has_its_time():
    driver = connected()
    driver.send(auth(driver.client().get_client_first().encode(), REAUTHENTICATE))
    assert driver.adapter.deadline_ms() == driver.now_ms + 10_000
    assert driver.tick(9_999) == []
    assert ended(driver.tick(1), Code.NOT_AUTHORIZED)


def test_an_overload_is_said_to_be_one():
    driver = connected()
    driver.authenticate = lambda request: Outcome(error=Refusal(Cause.OVERLOAD))
    assert ended(driver.send(auth(b"x", REAUTHENTICATE)), Code.SERVER_BUSY)


# ---- credentials expire


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_connection_ends_when_its_token_does(version):
    driver = Driver(version)
    driver.principal = Outcome(value=Principal(name="u", expires_at_ms=driver.now_ms + 60_000))
    driver.connect(username="u", password=b"token")
    assert driver.adapter.deadline_ms() == driver.now_ms + 60_000
    assert driver.tick(59_999) == []
    packets = driver.tick(1)
    assert [packet.code for packet in packets] == ([Code.NOT_AUTHORIZED] if version == 5 else [])
    assert driver.closed == "the credentials have expired"


def test_keep_alive_and_expiry_whichever_is_first():
    driver = Driver(5)
    driver.principal = Outcome(value=Principal(name="u", expires_at_ms=driver.now_ms + 60_000))
    driver.connect(username="u", password=b"token", keep_alive_s=10)
    assert driver.adapter.deadline_ms() == driver.now_ms + 15_000


def test_proving_it_again_moves_the_end():
    driver = ScramDriver()
    driver.expires_at_ms = driver.now_ms + 60_000
    assert driver.join().code == 0
    assert driver.adapter.deadline_ms() == driver.expires_at_ms
    client = driver.client()
    (challenge,) = driver.send(auth(client.get_client_first().encode(), REAUTHENTICATE))
    assert driver.adapter.deadline_ms() == driver.now_ms + 10_000
    driver.expires_at_ms = driver.now_ms + 90_000
    driver.prove(client, challenge)
    assert driver.adapter.deadline_ms() == driver.now_ms + 90_000
    assert driver.tick(60_000) == []


def test_the_device_that_a_token_claims():
    driver = Driver(5)
    driver.principal = Outcome(value=Principal(name="fleet", device="d7"))
    driver.connect(username="fleet", password=b"token")
    driver.send(Publish(topic="a", payload=b""))
    assert [message.device for message in driver.published()] == ["d7"]
