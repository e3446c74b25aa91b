"""Whose a topic is that publishing makes: each user has a share of the topics that there may be."""

from typing import Final

from gateway.principal import Principal

__all__ = ["ANYBODY", "creator_of"]

ANYBODY: Final = "anybody"  # has one share: all without a name, and guests, whose password everybody knows


def creator_of(publisher: object, who: Principal | None) -> str:
    """Returns what the topics are counted under that a publish makes, "" for the gateway's own, which has no share.

    `who` publishes, as the effect says, or else the publisher's `principal`, where it has one.
    """
    principal = who if who is not None else getattr(publisher, "principal", None)
    if principal is None:
        return ""
    return ANYBODY if principal.anonymous or principal.guest else f"user {principal.name}"
