"""The environment of groups: the parts of a process that groups of both kinds work with."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.api.client import ControllerClient
from gateway.groups.settings import GroupsConfig
from gateway.port.adapter import Random
from store.api.client import StoreClient

DEFAULTS = GroupsConfig()


def _counts_nothing(_protocol: str, _topic: str, _count: int) -> None:
    """Takes the count of delivered messages, and does nothing with it."""


def _own_addresses(topic: str) -> Sequence[str]:
    """Returns a filter of the addresses below a topic, for a process without routes."""
    return (f"{topic}/#",)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEnvironment:
    """The store, the controllers and the settings of a process, with its chance and its clocks."""

    store: StoreClient
    controller: ControllerClient
    random: Random
    now_ms: Callable[[], int]  # since 1970
    clock: Callable[[], float] = time.monotonic  # seconds; it never goes back
    config: GroupsConfig = DEFAULTS
    may_come: bool = True  # a topic that is missing may be made later, so a group may wait for it
    delivered: Callable[[str, str, int], object] = _counts_nothing  # takes protocol, topic and number of messages
    patterns_of: Callable[[str], Sequence[str]] = _own_addresses  # filters of all addresses that a topic can have
