"""Compares the readiness of proxies with what their clients get, and that of nodes with the others, in samples."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

SAMPLE_S = 0.25
SERVED_NOTHING_S = 8.0  # a client that is refused for so long while its proxy says that it is ready was told a lie
NODE_SAMPLE_S = 1.0
WRONG_NODE_S = 8.0  # for which a node may say that it is ready and not know better yet


class WrongWord(NamedTuple):
    """A proxy that said it was ready to a client that got nothing, and for how long."""

    proxy: str
    seconds: float
    refusals: int


class Readiness(threading.Thread):
    """Asks every proxy for its readiness, again and again, and remembers since when it has said so without a break.

    Clients report with `served` and `refused`, by the name of their proxy. `wrong` is what did not fit.
    """

    def __init__(self, proxies: Sequence[str], ready: Callable[[str], bool]) -> None:
        super().__init__(name="readiness", daemon=True)
        self._ready = ready
        self._lock = threading.Lock()
        self._since: dict[str, float | None] = dict.fromkeys(proxies)  # since when it says that it is ready
        self._served: dict[str, float] = {}
        self._refused: dict[str, list[float]] = {name: [] for name in proxies}  # when, since it was ready and served
        self._done = threading.Event()
        self.wrong: list[WrongWord] = []
        self.samples = 0

    def run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            for name in self._since:
                self._look(name, self._ready(name))

    def stop(self) -> None:
        self._done.set()
        self.join()

    def _look(self, name: str, ready: bool) -> None:
        now = time.monotonic()
        with self._lock:
            self.samples += 1
            since = self._since[name]
            if not ready:
                self._since[name] = None
                self._refused[name].clear()
                return
            if since is None:
                self._since[name] = now
            # Clients may have gone to another proxy: only those that came again and again were told something wrong.
            refused = self._refused[name]
            if refused and refused[-1] - refused[0] >= SERVED_NOTHING_S:
                self.wrong.append(WrongWord(name, refused[-1] - refused[0], len(refused)))
                refused.clear()  # said once

    def served(self, name: str) -> None:
        """Notes that a client of this proxy was acknowledged something."""
        with self._lock:
            self._served[name] = time.monotonic()
            self._refused[name].clear()

    def refused(self, name: str) -> None:
        """Notes that a client of this proxy was refused, or lost its connection."""
        with self._lock:
            if self._since[name] is not None:
                self._refused[name].append(time.monotonic())

    def report(self) -> Mapping[str, int]:
        """Returns the figures for the run's report."""
        return {"samples": self.samples, "wrong": len(self.wrong)}


class WrongNode(NamedTuple):
    """A node that said it was ready for so long, and the reason why it was not."""

    node: str
    why: str
    seconds: float


class NodeReadiness(threading.Thread):
    """Asks nodes for their status, and compares those that say they are ready with the others.

    `status` returns the document of /status of a node with `ready` in it, None when there is no answer. `wrong` is what
    did not fit.
    """

    def __init__(self, nodes: Sequence[str], status: Callable[[str], Mapping[str, Any] | None]) -> None:
        super().__init__(name="node-readiness", daemon=True)
        self._nodes = tuple(nodes)
        self._status = status
        self._since: dict[tuple[str, str], float] = {}  # a node and why it is not ready: since when it has been so
        self._done = threading.Event()
        self.wrong: list[WrongNode] = []
        self.samples = 0

    def run(self) -> None:
        while not self._done.wait(NODE_SAMPLE_S):
            self.look({name: self._status(name) for name in self._nodes}, time.monotonic())

    def stop(self) -> None:
        self._done.set()
        self.join()

    def look(self, statuses: Mapping[str, Mapping[str, Any] | None], now_s: float) -> None:
        """Takes one sample of all nodes."""
        self.samples += 1
        ready = {name: one for name, one in statuses.items() if one is not None and one["ready"]}
        reasons = {(name, why) for name in ready for why in self.reasons(name, statuses)}
        for gone in self._since.keys() - reasons:
            del self._since[gone]
        for found in sorted(reasons):
            since_s = self._since.setdefault(found, now_s)
            if now_s - since_s >= WRONG_NODE_S:
                self.wrong.append(WrongNode(*found, now_s - since_s))
                self._since[found] = now_s  # said once in a while

    def reasons(self, name: str, statuses: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
        """Returns why a node that says it is ready is not."""
        raise NotImplementedError


class StoreReadiness(NodeReadiness):
    """The same of stores.

    A ready master is not damaged, no other master has a later epoch, and `min_in_sync` members of its set answer. A
    ready replica is not damaged, has a master, and is in the SyncStateSet once it has been in it under its id. Neither
    has a disk that is `full`.
    """

    def __init__(
        self,
        stores: Sequence[str],
        status: Callable[[str], Mapping[str, Any] | None],
        *,
        min_in_sync: int = 1,
        full: Callable[[str], bool] = lambda _name: False,
    ) -> None:
        super().__init__(stores, status)
        self._min_in_sync, self._full = min_in_sync, full
        self._members: set[tuple[int, int]] = set()  # groups and ids of replicas that have been in the SyncStateSet

    def reasons(self, name: str, statuses: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
        """See `NodeReadiness`."""
        mine = statuses[name]
        assert mine is not None
        others = [one for one in statuses.values() if one is not None and one["group"] == mine["group"]]
        masters = [one for one in others if one["role"] == "master"]
        reasons = ["damaged"] if mine["damages"] else []
        if self._full(name):
            reasons.append("its disk is full")
        if not masters:  # one that does not answer may be the master
            return reasons if None in statuses.values() else [*reasons, "no master"]
        newest = max(masters, key=lambda one: one["master_epoch"])
        self._members |= {(newest["group"], id_) for id_ in newest["sync_set"]}
        if mine["role"] == "master":
            if len({one["replica"] for one in others}.intersection(mine["sync_set"])) < self._min_in_sync:
                reasons.append("fewer than min_in_sync")
            return reasons if mine is newest else [*reasons, "another master has a later epoch"]
        out = mine["replica"] not in newest["sync_set"] and (mine["group"], mine["replica"]) in self._members
        return [*reasons, "not in the SyncStateSet"] if out else reasons


class ControllerReadiness(NodeReadiness):
    """The same of controllers: a ready one knows a leader, and has come to the term of the others."""

    def reasons(self, name: str, statuses: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
        """See `NodeReadiness`."""
        mine = statuses[name]
        assert mine is not None
        newest = max(one["term"] for one in statuses.values() if one is not None)
        leaderless = [] if mine["leader"] is not None else ["no leader"]
        return leaderless if mine["term"] == newest else [*leaderless, "behind the term of another controller"]
