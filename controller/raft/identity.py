"""Checks a message's sender and addressee: an id may be given again, an incarnation never (see membership.py)."""

from collections.abc import Sequence

import msgspec

from controller.raft.messages import AppendReply, HeartbeatReply, Message, ReadRequest, Vote, VoteReply
from controller.raft.node import Node
from controller.raft.ready import LastReport

LAST_REPORTS_COUNT_MAX = 1_024  # nodes whose progress is remembered
_COUNTED = (VoteReply, AppendReply, HeartbeatReply, ReadRequest)  # only by members


def is_accepted(node: Node, message: Message) -> bool:
    """Returns whether a message is for this very node and, where that counts, by the one that the membership names.

    Replies count for majorities, so replies by another incarnation than the member's are ignored. Leaders and
    messages of any candidate are taken: they count majorities themselves, and may be members that this node has not
    read of yet.
    """
    if message.addressee != node.incarnation and (message.addressee or not node.legacy):
        return False
    if not isinstance(message, _COUNTED):
        return True
    known = node.membership.get(message.sender)
    return known is None or known.is_(message.incarnation)


def signed(node: Node, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Returns messages with the incarnations of their sender and of their addressee."""
    if not node.incarnation:
        return tuple(messages)
    return tuple(
        msgspec.structs.replace(
            message,
            incarnation=node.incarnation,
            addressee=message.addressee or node.membership.incarnation_of(message.to),
        )
        for message in messages
    )


class LastReports:
    """The progress of other nodes when they last spoke: an older copy of a node's directory knows less."""

    def __init__(self) -> None:
        self._held: dict[int, LastReport] = {}  # by id; no more than LAST_REPORTS_COUNT_MAX

    def get(self, node_id: int) -> LastReport | None:
        """Returns a node's progress as last heard since this node started; None when nothing was heard."""
        return self._held.get(node_id)

    def note(self, message: Message) -> None:
        """Notes that a node has spoken."""
        if not message.incarnation or (isinstance(message, Vote | VoteReply) and message.pre):
            return  # of a pre-vote, the term may never come
        index = message.index if isinstance(message, AppendReply) and not message.refused else 0
        found = LastReport(incarnation=message.incarnation, term=message.term, index=index)
        held = self._held.get(message.sender)
        same = held is not None and held.incarnation == found.incarnation
        if same and held is not None and (held.term, held.index) >= (found.term, found.index):
            return
        if held is not None or len(self._held) < LAST_REPORTS_COUNT_MAX:
            self._held[message.sender] = found
