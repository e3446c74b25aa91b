"""The checks before a replica takes another's frames: its cluster, its log and its id.

An address may meanwhile belong to another node, perhaps of another cluster, whose groups have the same numbers.
"""

import msgspec

from controller.api.client import Group
from store.node.replica.identity import ReplicaIdentity
from store.replication.messages import Hello, Refused, Why

STRANGE = frozenset({Why.WRONG_GROUP, Why.WRONG_CLUSTER, Why.WRONG_LOG, Why.WRONG_CHECK})  # time mends none of these


def sign(hello: Hello, identity: ReplicaIdentity, log: str) -> Hello:
    """Returns a replica's first message with the ids that authenticate it."""
    return msgspec.structs.replace(hello, cluster=identity.cluster, log=log, check=identity.check)


def refusal(hello: Hello, identity: ReplicaIdentity, log: str, group: Group) -> Refused | None:
    """Returns why the master of a group refuses a replica: a wrong cluster, log or check code; None when it does not.

    A replica of an older version leaves fields out; that is not held against it.
    """
    known = group.replica(hello.replica)
    if identity.cluster and hello.cluster not in {"", identity.cluster}:
        return _refused(hello, Why.WRONG_CLUSTER, f"this is cluster {identity.cluster}, not {hello.cluster}")
    if log and hello.log not in {"", log}:
        return _refused(hello, Why.WRONG_LOG, f"the log of store group {group.number} is {log}, not {hello.log}")
    if known is not None and known.check and hello.check not in {"", known.check}:
        who = f"replica {hello.replica} of store group {group.number} is {known.node} at {known.address}"
        return _refused(hello, Why.WRONG_CHECK, f"{who}, by another check code")
    return None


def _refused(hello: Hello, why: Why, text: str) -> Refused:
    return Refused(session=hello.session, epoch=0, why=why, text=text)
