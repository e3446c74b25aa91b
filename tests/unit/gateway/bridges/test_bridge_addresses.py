"""The addresses that an upstream's messages go to."""

import pytest

from gateway.bridges.shared.addresses import BridgedFilter, DestinationMap


def place(pattern, template, topic, device="{bridge}"):
    found = DestinationMap("up", [BridgedFilter(pattern, 1, template, device)])(topic)
    return None if found is None else found.address


@pytest.mark.parametrize(
    ("pattern", "template", "topic", "address"),
    [
        ("#", "plant7/{topic}", "a/b", "plant7/a/b"),
        ("#", "{topic}", "/a//b/", "/a//b/"),
        ("factory/+/state/#", "plant7/{1}/{2}", "factory/press/state/oil/temp", "plant7/press/oil/temp"),
        ("factory/+/state/#", "plant7/{1}/{2}", "factory/press/state", "plant7/press"),
        ("factory/#", "{1}", "factory/a/b", "a/b"),
        ("+/+", "{2}/{1}/{bridge}", "a/b", "b/a/up"),
        ("+/+", "x{1}y/{1}", "a/b", "xay/a"),
        ("a/b", "fixed", "a/b", "fixed"),
        ("$share/group/a/+", "{1}", "a/b", "b"),
        ("$SYS/#", "plant7/sys/{1}", "$SYS/broker/load", "plant7/sys/broker/load"),
        ("+", "{1}", "", ""),
        ("a/b", "{topic}", "a/c", None),
        ("a/+", "{topic}", "a", None),
        ("a/+", "{topic}", "a/b/c", None),
        ("#", "{topic}", "$SYS/x", None),
        ("+/x", "{topic}", "$SYS/x", None),
    ],
)
def test_a_template_is_filled_in(pattern, template, topic, address):
    assert place(pattern, template, topic) == address


def test_the_first_that_matches_counts_and_the_device_is_a_template_too():
    places = DestinationMap(
        "up", [BridgedFilter("a/+", 1, "one/{1}", "dev-{1}"), BridgedFilter("#", 1, "rest/{topic}", "{bridge}")]
    )
    assert places("a/b") == ("one/b", "dev-b")
    assert places("c/d") == ("rest/c/d", "up")


@pytest.mark.parametrize(
    ("pattern", "to", "device", "key"),
    [
        ("a/#/b", "{topic}", "d", "filter"),
        ("a+", "{topic}", "d", "filter"),
        ("$share/group", "{topic}", "d", "filter"),
        ("$share//a", "{topic}", "d", "filter"),
        ("$share/+/a", "{topic}", "d", "filter"),
        ("a/+", "{2}", "d", "to"),
        ("a/+", "{0}", "d", "to"),
        ("a/+", "{Topic}", "d", "to"),
        ("a/+", "{", "d", "to"),
        ("a/+", "}{topic", "d", "to"),
        ("a/+", "$SYS/{topic}", "d", "to"),
        ("a/+", "b/+", "d", "to"),
        ("a/+", "b/#", "d", "to"),
        ("a/+", "{topic}", "{3}", "device"),
    ],
)
def test_what_is_wrong_is_said(pattern, to, device, key):
    assert [found for found, _ in DestinationMap.mistakes("up", BridgedFilter(pattern, 1, to, device))] == [key]


@pytest.mark.parametrize("to", ["{topic}", "plant/{1}/{2}", "{bridge}/x"])
def test_nothing_is_wrong(to):
    assert not list(DestinationMap.mistakes("up", BridgedFilter("$share/g/a/+/#", 1, to, "{bridge}")))
