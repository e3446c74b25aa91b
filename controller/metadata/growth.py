"""Metadata only grows: an id is never given to another, and epochs do not fall."""

from controller.api.client import MetadataForgotten
from controller.metadata.state import MetadataState


def check_growth(before: MetadataState, after: MetadataState) -> None:
    """Compares a state with a later one of the same cluster, whatever lies between. Raises `MetadataForgotten`."""
    if after.generation < before.generation:
        raise forgotten(f"metadata was recovered {before.generation} times, and now {after.generation} times")
    if after.next_queue < before.next_queue:
        raise forgotten(f"the next queue had number {before.next_queue}, and now has {after.next_queue}")
    for number, group in before.groups.items():
        there = after.groups.get(number)
        if there is not None and there.master_epoch < group.master_epoch:
            raise forgotten(
                f"store group {number} was at epoch {group.master_epoch}, and now is at {there.master_epoch}"
            )
    had = _owners(before)
    for number, owner in _owners(after).items():
        if had.get(number, owner) != owner:
            raise forgotten(f"queue {number} was that of {had[number]}, and now is that of {owner}")


def _owners(state: MetadataState) -> dict[int, str]:
    """Returns the owner of each queue, in words."""
    named = {queue.number: f"named queue {name!r}" for name, queue in state.named.items()}
    return named | {number: f"topic {name!r}" for number, name in state.owner.items()}


def forgotten(what: str) -> MetadataForgotten:
    """Returns the error that says which committed metadata the controllers have forgotten."""
    return MetadataForgotten(
        f"the controllers have forgotten committed metadata: {what}; nothing of them is believed; start the "
        "controllers that have it"
    )
