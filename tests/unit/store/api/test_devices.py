"""Devices: one name for all protocols, by rules over what a message says."""

import pytest

from adapters.amqp.codec.properties import Template
from adapters.mqtt.messages.messages import NO_TEMPLATE
from store.api.devices import DEVICE_CHARS_MAX, DeviceRule, Devices, generated
from store.api.message import EVENT, Message, decode, encode


def device(message: Message, *rules: DeviceRule) -> str:
    devices = Devices(rules)
    first, again = devices.of([message, message])
    assert first == again
    return first


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            "guest",
            "mosq-Xk2JQ9yLw0aB",
            "auto-5F0D3C1E-9AB2-4C6D-8E1F-001122334455",
            "mqttjs_8f3a1b2c",
            "127.0.0.1",
        ),
        *(
            "10.0.0.7:51234",
            "::1",
            "[fe80::1]:5683",
            "fe80::1:2:3:4",
            "fe80::1%eth0",
            "[fe80::1%25en0.7]:5683",
            "::ffff:10.0.0.7",
            "localhost:1883",
            "f3a9c0d1e2b34567f",
            "0b9c7e7a-6f55-4a8e-9a33-6f8f6f2f1d11",
        ),
        *("paho1234567890", "localhost", "mqttx_0a1b2c3d"),
    ],
)
def test_names_that_libraries_make_up_are_no_devices(name):
    assert generated(name)
    assert device(Message(address="telemetry/site1/dev42/temp", device=name)) == "dev42"


HARDWARE = (
    *("AA:BB:CC:DD:EE:01", "aa-bb-cc-dd-ee-01", "aabbccddee01"),  # EUI-48
    *("0011223344556677", "a81758fffe03f6c1", "00:11:22:33:44:55:66:77", "A8-17-58-FF-FE-03-F6-C1"),  # EUI-64
    *("89490200001234567890", "8949020000123456789", "8944500102198304826F", "894450010219830482f"),  # ICCIDs
    "12:34:56:78:9a:bc:de:f0",  # an EUI-64
)


@pytest.mark.parametrize(
    "name", ["dev42", "pump-7", "cafe", "sensor_0017", "mosquito-trap", "amqp-bridge", "a1b2c3", *HARDWARE]
)
def test_names_of_their_own_stay(name):
    assert not generated(name)
    assert device(Message(address="telemetry/site1/dev42/temp", device=name)) == name


def test_the_same_address_is_the_same_device_by_every_protocol():
    speakers = {"http": "dev42", "coap": "dev42", "mqtt": "mosq-3kd93kdl2k", "amqp": "guest", "ws": "10.1.2.3"}
    found = {
        device(Message(address="telemetry/site1/dev42/temp", device=name, protocol=protocol))
        for protocol, name in speakers.items()
    }
    assert found == {"dev42"}


def test_addresses_of_other_shapes():
    assert device(Message(address="room1/temp", device="guest")) == "room1"
    assert device(Message(address="temp", device="guest")) == "temp"
    assert device(Message(address="spBv1.0/g/DDATA/edge/dev", device="mosq-1a")) == "edge/dev"
    assert device(Message(address="spBv1.0/g/NDATA/edge", device="mosq-1a")) == "edge"
    assert device(Message(address="a//", device="")) == "a/"


@pytest.mark.parametrize("kind", ["NBIRTH", "NDATA", "DDATA"])
def test_the_message_type_of_sparkplug_is_no_device(kind):
    """HTTP and CoAP name the device by level 2 of the address: BIRTH and DATA would be of two devices."""
    for name in (kind, "mosq-1a", "edge"):
        assert device(Message(address=f"spBv1.0/g/{kind}/edge", device=name)) == "edge"
    assert device(Message(address=f"spBv1.0/g/{kind}/edge", device="backend-7")) == "backend-7"


def test_rules_apply_by_filter_the_first_that_gives_a_name():
    rules = (
        DeviceRule(filter="plant/#", source="template", template="plant/{site}/{device}/{device}/#"),
        DeviceRule(filter="+/x/#", source="property", name="serial"),
        DeviceRule(filter="+/x/#", source="level", level=3),
        DeviceRule(filter="users/+", source="identity"),
        DeviceRule(filter="events/#", source="cloudevents", name="subject"),
    )
    assert device(Message(address="plant/s1/line4/press/t", device="gw"), *rules) == "line4/press"
    assert device(Message(address="a/x/b/c", device="gw", properties=(("serial", "S7"),)), *rules) == "S7"
    assert device(Message(address="a/x/b/c", device="gw"), *rules) == "c"
    assert device(Message(address="a/x/b", device="gw"), *rules) == "gw"
    assert device(Message(address="users/u", device="gw", principal="ann"), *rules) == "ann"
    event = {EVENT: {"subject": "dev9"}}
    assert device(Message(address="events/reading", device="gw", native=event), *rules) == "dev9"
    assert device(Message(address="events/reading", device="gw", native={EVENT: 3}), *rules) == "gw"


def test_clients_named_by_their_hardware_are_devices_of_their_own():
    """With the address alone all were the device `sensors`, also by a rule that asks for the client identifier."""
    messages = [Message(address="sensors/temp", device=name) for name in HARDWARE]
    assert Devices().of(messages) == list(HARDWARE)
    assert Devices([DeviceRule(source="client_id")]).of(messages) == list(HARDWARE)


def test_a_rule_that_asks_for_the_name_takes_all_but_those_of_libraries_and_of_many():
    by_client, by_identity = DeviceRule(source="client_id"), DeviceRule(source="identity")
    for name in ("0b9c7e7a-6f55-4a8e-9a33-6f8f6f2f1d11", "f3a9c0d1e2b34567f", "10.0.0.7", "fe80::1"):
        assert device(Message(address="t/s/d/x", device=name), by_client) == name
        assert device(Message(address="t/s/d/x", device="gw", principal=name), by_identity) == name
        assert device(Message(address="t/s/d/x", device=name)) == "d"
    for name in ("mosq-Xk2JQ9yLw0aB", "mqttjs_8f3a1b2c", "paho1234567890", "auto-7", "nodered-1", "mqttx-plant3"):
        assert device(Message(address="t/s/d/x", device=name), by_client) == "d"
        assert device(Message(address="t/s/d/x", device=name), by_identity) == name
        assert device(Message(address="t/s/d/x", device="gw", principal=name), by_identity) == name
    for name in ("", "guest", "anonymous"):
        assert device(Message(address="t/s/d/x", device=name), by_client) == "d"
        assert device(Message(address="t/s/d/x", device="", principal=name), by_identity) == "d"


def test_an_identity_is_the_login_as_adapters_write_it():
    """Of a login the adapters write a principal only where a trusted gateway speaks for another device; "": nobody."""
    amqp = Template((1, False, "", *[None] * 10, (), None), False, 0, None, None, None, None, None, False)
    address, rules = "telemetry/site1/line3/temp", (DeviceRule(source="identity"), DeviceRule())
    login = amqp.message(address, b"1", device="dev42", trusted_gateway=False, now_ms=0, user="dev42")
    gateway = amqp._replace(device="sensor7").message(address, b"1", device="gw", trusted_gateway=True, now_ms=0)
    mqtt, nobody = [
        NO_TEMPLATE.message(address, b"1", qos=1, retain=False, device="dev43", principal=principal, now_ms=0)
        for principal in (None, "")
    ]
    messages = [login, gateway, mqtt, nobody]
    assert [(m.device, m.principal) for m in messages] == [
        *(("dev42", None), ("sensor7", "gw"), ("dev43", None), ("dev43", "")),
    ]
    assert Devices(rules).of(messages) == ["dev42", "gw", "dev43", "line3"]
    for source in ("identity", "property"):  # of a rule that gives no name the name in the log counts still
        assert device(login, DeviceRule(source=source, name="serial")) == "dev42"


@pytest.mark.parametrize("name", ["pump-7", "mosq-Xk2JQ9yLw0aB", "10.0.0.7", "dev42"])
def test_a_client_that_has_not_logged_in_has_no_identity(name):
    """The next rule decides, or the default does. A record of before has no principal, and its name counts."""
    address, identity = "telemetry/site1/line3/temp", DeviceRule(source="identity")
    nobody, before = (Message(address, device=name, principal=principal) for principal in ("", None))
    assert len(encode(nobody)) == len(encode(before))
    assert decode(encode(nobody)).principal == ""
    devices = Devices([identity, DeviceRule(source="level", level=1)])
    assert devices.of([nobody, before, nobody, before]) == ["site1", name, "site1", name]
    assert device(nobody, identity) == device(nobody)
    assert device(nobody, DeviceRule(source="client_id")) == device(before, DeviceRule(source="client_id"))


def test_a_property_is_read_of_each_message_and_not_remembered():
    devices = Devices([DeviceRule(source="property", name="serial")])
    messages = [Message(address="a/b", device="gw", properties=(("serial", str(n)),)) for n in range(3)]
    assert devices.of(messages) == ["0", "1", "2"]


def test_names_are_cut():
    assert len(device(Message(address="a", device="d" * 300))) == DEVICE_CHARS_MAX


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"filter": "a/#/b"}, "# for the last"),
        ({"filter": "a+"}, "whole levels"),
        ({"filter": ""}, "whole levels"),
        ({"source": "level", "level": -1}, "counted from 0"),
        ({"source": "template", "template": "a/+"}, "must be"),
        ({"source": "property"}, "needs a name"),
    ],
)
def test_a_rule_that_is_none_is_refused(given, why):
    with pytest.raises(ValueError, match=why):
        DeviceRule(**given)
