"""Devices: one name for all protocols, by rules over what a message says."""

import pytest

from store.api.devices import DEVICE_CHARS_MAX, DeviceRule, Devices, generated
from store.api.message import EVENT, Message


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
        *("10.0.0.7:51234", "::1", "[fe80::1]:5683", "f3a9c0d1e2b34567", "0b9c7e7a-6f55-4a8e-9a33-6f8f6f2f1d11"),
        *("paho1234567890", "localhost", "mqttx_0a1b2c3d"),
    ],
)
def test_names_that_libraries_make_up_are_no_devices(name):
    assert generated(name)
    assert device(Message(address="telemetry/site1/dev42/temp", device=name)) == "dev42"


@pytest.mark.parametrize("name", ["dev42", "pump-7", "cafe", "sensor_0017", "mosquito-trap", "amqp-bridge", "a1b2c3"])
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
