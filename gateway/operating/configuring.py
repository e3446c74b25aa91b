"""A store group's configuration, changed while it runs."""

from collections.abc import Sequence
from typing import cast, get_args

from controller.api.client import Acknowledge, Group, GroupChanges, GroupConfig, UnknownGroup
from controller.api.commands import AddGroup, ConfigureGroup
from controller.api.names import listed
from controller.remote.remote import RemoteController
from store.base.process_errors import ConfigError


async def configure(
    controller: RemoteController,
    number: int,
    *,
    replicas: int | None = None,
    min_in_sync: int | None = None,
    acknowledge: str | None = None,
    unclean_election: bool | None = None,
) -> tuple[Group, Group]:
    """Changes the settings that are named; the group before and after. Raises `ControllerError`, `ConfigError`.

    The state machine changes these alone, so another operator's changes of others stay.
    """
    if acknowledge not in {None, *get_args(Acknowledge)}:
        raise ConfigError(f"--acknowledge: {acknowledge!r} is none of {', '.join(get_args(Acknowledge))}")
    changes = GroupChanges(
        replicas=replicas,
        min_in_sync=min_in_sync,
        acknowledge=cast("Acknowledge | None", acknowledge),
        unclean_election=unclean_election,
    )
    if changes == GroupChanges():
        raise ConfigError("nothing to change: name --replicas, --min-in-sync, --acknowledge or --unclean-election")
    await controller.barrier()
    there = controller.group(number)
    if there is None:
        raise UnknownGroup(f"there is no store group {number}")
    return there, await controller.do(ConfigureGroup(number=number, config=changes))


async def add(controller: RemoteController, number: int, config: GroupConfig) -> bool:
    """Adds a store group; returns whether it is new. Raises `ControllerError`."""
    await controller.barrier()
    is_new = controller.group(number) is None
    await controller.do(AddGroup(number=number, config=config))
    return is_new


def effects(before: Group, after: Group) -> Sequence[str]:
    """Returns sentences on the differences, and from when on they hold."""
    was, now = before.config, after.config
    if was == now:
        return ["it is configured so already"]
    said = []
    if was.replicas != now.replicas:
        said.append(_of_replicas(after))
    if was.min_in_sync != now.min_in_sync:
        few = "" if len(after.sync_set) >= now.min_in_sync else f"; in sync now: {listed(after.sync_set)}, so it waits"
        said.append(
            f"min_in_sync is {now.min_in_sync}, as soon as the master knows it: with fewer nothing is written{few}"
        )
    if was.acknowledge != now.acknowledge:
        said.append(
            f"writes are answered by {now.acknowledge}, as soon as the master knows it; the others join its set anew"
        )
    if was.unclean_election != now.unclean_election:
        said.append(
            "unclean election is allowed: when no replica in sync is left for 10 s, another one leads; writes that it "
            "lacks are lost; diverged replicas begin anew"
            if now.unclean_election
            else "unclean election is not allowed: when no replica in sync is left, the group waits for one of them"
        )
    return said


def _of_replicas(group: Group) -> str:
    there, meant = len(group.voters), group.config.replicas
    if there < meant:
        return f"{meant} replicas are meant to be, {there} are there: start nodes of the group on empty directories"
    if there > meant:
        return f"{meant} replicas are meant to be, {there} are there: retire some with headgate cluster replicas retire"
    return f"{meant} replicas are meant to be, and are there"
