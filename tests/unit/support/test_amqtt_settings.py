"""The settings of amqtt's plug-in: amqtt does not start with those that make no sense."""

import logging

import pytest
from amqtt.contexts import BaseContext

from amqtt_headgate import HeadgatePlugin


def plugin(**settings):
    context = BaseContext()
    context.logger = logging.getLogger(__name__)
    context.config = HeadgatePlugin.Config(host="gateway", **settings)
    return HeadgatePlugin(context)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"to": "a/{client}"}, "makes no address"),
        ({"to": "a/#"}, "makes no address"),
        ({"to": "$amqp/{topic}"}, "makes no address"),
        ({"topics": ["a/#/b"]}, "write filters"),
        ({"held_count_max": 0}, "positive"),
    ],
)
def test_each_mistake_is_said(settings, what):
    with pytest.raises(ValueError, match=what):
        plugin(**settings)


def test_defaults_hand_all_over():
    one = plugin(to="plant7/{topic}")
    assert one._wanted("a/b")
    assert not one._wanted("$SYS/x")
    assert not plugin(topics=["a/+"])._wanted("b/c")
