"""Publishing to the logs of several store groups."""

from contextlib import asynccontextmanager

from controller.api.client import GroupConfig
from controller.api.commands import AddGroup, ClusterLimits, CreateTopic
from controller.node.local import LocalController
from gateway.port.adapter import Publish, Token
from store.api.message import Message


def message(key, body=b"x", address="t/1", **fields):
    return Message(address, body, key=key, protocol="mqtt", **fields)


def publish_marked(rig, who, token, messages, marks, **options):
    publisher = rig.publisher(who)
    rig.ingest.publish(publisher, Publish(messages, Token(token), marks=marks), 10, **options)
    rig.turn()


@asynccontextmanager
async def two_groups(directory):
    """Yields the controller of two store groups with a topic of four queues, `t`."""
    controller = LocalController.open(directory, limits=ClusterLimits(default_queues=4), now_ms=lambda: 0)
    for group in (0, 1):
        await controller.do(AddGroup(number=group, config=GroupConfig()))
    await controller.do(CreateTopic(name="t"))
    yield controller
    await controller.close()
