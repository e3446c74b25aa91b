"""Handling of a leader's messages by a follower, and of a candidate's by any node."""

from controller.raft.errors import BadMessage, WentBack
from controller.raft.messages import (
    NOBODY,
    Append,
    AppendReply,
    HeartbeatReply,
    InstallSnapshot,
    LeaderHeartbeat,
    ReadReply,
    Vote,
    VoteReply,
)
from controller.raft.node import Node
from controller.raft.ready import ReadState


def on_append(node: Node, message: Append) -> None:
    """Takes entries, and says up to where the logs are equal, or where to look for it (paper, 5.3)."""
    log = node.log
    if message.prev_index < log.committed:  # late, or the leader does not know how far we are
        _answer(node, message, log.committed)
        return
    index = log.try_append(message.prev_index, message.prev_term, message.entries)
    if index is not None:
        log.commit_to(min(message.commit, index))
        _answer(node, message, index)
        return
    hint_index, hint_term = log.last_not_above(message.prev_index, message.prev_term)
    node.outbox.append(
        AppendReply(
            sender=node.id,
            to=message.sender,
            addressee=message.incarnation,
            term=node.term,
            index=message.prev_index,
            refused=True,
            hint_index=hint_index,
            hint_term=hint_term,
        )
    )


def on_heartbeat(node: Node, message: LeaderHeartbeat) -> None:
    """Commits the entries that the leader knows us to have; answers if needed. Raises `BadMessage`, `WentBack`.

    A leader names no more than this very node has acknowledged to it in this term. Within a term a log loses nothing of
    that, so a log that is shorter is an old copy of itself.
    """
    if message.commit > node.log.last_index:
        text = f"this controller had entry {message.commit}, and the log ends at {node.log.last_index}"
        raise WentBack(text) if node.incarnation and message.addressee == node.incarnation else BadMessage(text)
    node.log.commit_to(message.commit)
    if message.quiet:
        return
    node.outbox.append(
        HeartbeatReply(
            sender=node.id, to=message.sender, addressee=message.incarnation, term=node.term, read=message.read
        )
    )


def on_install_snapshot(node: Node, message: InstallSnapshot) -> None:
    """Takes a snapshot in place of the log, unless the log has the entries that it covers (paper, figure 13).

    The node need not be a member of it: it may have been added after the snapshot was taken.
    """
    log, snapshot = node.log, message.snapshot
    if log.term(snapshot.index) == snapshot.term:
        log.commit_to(snapshot.index)
    elif snapshot.index > log.committed:
        log.restore(snapshot)
    _answer(node, message, log.committed)


def on_read_reply(node: Node, message: ReadReply) -> None:
    """Hands out the answer to a read of ours."""
    node.reads.append(ReadState(context=message.context, index=message.index))


def on_vote(node: Node, message: Vote) -> bool:
    """Answers a candidate (paper, 5.2 and 5.4.1). Returns whether it has got this node's real vote.

    A node that is asked votes, though it knows itself only as a learner or not as a member at all: the change that made
    it a voter may be committed before it knows, and its vote may be needed to go on.
    """
    free = node.vote == message.sender or (node.vote == NOBODY and node.leader == NOBODY)
    ahead = message.pre and message.term > node.term
    sound = node.trusts(message.last_term, message.last_index)
    granted = sound and (free or ahead) and node.log.is_up_to_date(message.last_index, message.last_term)
    # A granted pre-vote is of the term that is asked for; a refusal tells the candidate of ours.
    term = message.term if granted else node.term
    node.outbox.append(
        VoteReply(
            sender=node.id,
            to=message.sender,
            addressee=message.incarnation,
            term=term,
            granted=granted,
            pre=message.pre,
        )
    )
    if not granted or message.pre:
        return False
    node.vote = message.sender
    return True


def _answer(node: Node, message: Append | InstallSnapshot, index: int) -> None:
    node.outbox.append(
        AppendReply(sender=node.id, to=message.sender, addressee=message.incarnation, term=node.term, index=index)
    )
