"""Sifts a batch by the conditions of subscriptions."""

from collections.abc import Mapping, Sequence

from gateway.domain.batch import Batch
from gateway.domain.sql92 import Where
from gateway.port.adapter import SubscriptionId


def sift(
    batch: Batch,
    picks: Sequence[int],
    subs: Sequence[tuple[SubscriptionId, ...]],
    conditions: Mapping[SubscriptionId, Where],
) -> tuple[list[int], list[tuple[SubscriptionId, ...]]]:
    """Returns the messages, by index, that pass for at least one subscription, and these subscriptions.

    A condition is evaluated once for a message, for all subscribers of a batch.
    """
    kept: list[int] = []
    wanted: list[tuple[SubscriptionId, ...]] = []
    for index, ids in zip(picks, subs, strict=True):
        passing = tuple(sub for sub in ids if (where := conditions.get(sub)) is None or _passes(batch, index, where))
        if passing:
            kept.append(index)
            wanted.append(passing)
    return kept, wanted


def _passes(batch: Batch, index: int, where: Where) -> bool:
    answers: dict[int, bool] = batch.memo.setdefault(where, {})
    found = answers.get(index)
    if found is None:
        found = answers[index] = where.matches(batch.messages[index])
    return found
