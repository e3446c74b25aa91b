"""The policy of elections: the controllers' leader elects by the metadata, the heartbeats and the time.

It proposes commands that name the epochs they were decided on, so whatever is decided late, twice, or by two who both
think that they lead, has no effect when it is applied.

- A master that is dead, or alive and no longer serving as one (its process was started again, or its disk has failed),
  is succeeded; in the second case by itself only where no other replica can be elected.
- The successor is in the SyncStateSet and alive, the best of them by newest epoch in its log, log end, priority.
- One whose certificate has expired, which nobody could connect to, is elected only where no sound one can be.
- One whose log is damaged is elected only where all that can be are, and the others of the set have had time to come
  back; one that has lost the end of its log never (docs/decisions/0031).
- Where a majority acknowledges, the master is taken away first. A replica that knows of that epoch takes nothing more
  from the one before, so its statement about its log is final; when a majority has, the longest log is the successor's.
- With no replica to elect, the master stays named for a while, for it may work on without heartbeats; then it is None.
- A group that never had a master waits for all of the replicas it is meant to have: one of them may bring a log.
- A master that sends heartbeats, but that those who need it cannot reach, is succeeded by one that they reach
  (`controller.complaints.policy`). So is one that an operator wants to be rid of.
- A replica that was preferred once is not put back for that; putting it back is an operator's command.
"""

import logging
from collections.abc import Collection, Iterable, Mapping

import msgspec

from controller.api.client import Group, NotElectable, StaleEpoch, UnknownGroup, UnknownReplica
from controller.api.commands import ElectMaster, LogEnd
from controller.api.names import listed
from controller.elections.announcements import ElectionAnnouncements
from controller.elections.losses import candidates, check_fit, not_electable
from controller.elections.majorities import are_enough_at_first, those_promised
from controller.elections.registry import Heartbeat, Registry
from controller.metadata.groups import majority

logger = logging.getLogger(__name__)

TAKE_OVER_MS = 10_000  # for an elected replica to serve, while it is alive, before another one is
VACATE_AFTER_MS = 10_000  # of a dead master without successor
UNCLEAN_AFTER_MS = 10_000  # of a SyncStateSet without a live replica
DAMAGED_AFTER_MS = 10_000  # of a SyncStateSet whose sound members are all silent, until a damaged one is elected
OPERATOR_CHOICE_MS = 5_000  # how long an operator's wish is remembered, where the election takes two commands
PROMISE_MS = 5_000  # for replicas to learn that the master was taken away, until one with an expired certificate counts
AGAIN_MS = 500  # between proposals of the same command, in case the first was lost


class Elections:
    """The policy over `groups`, which is the live metadata, and `registry`.

    `began` is called when this controller comes to lead, then `tick` every `registry.TICK_MS`, and whenever a heartbeat
    brought news or a group changed. `now_ms` is the registry's clock; `time_ms` is the time of day for the commands.
    """

    def __init__(self, groups: Mapping[int, Group], registry: Registry) -> None:
        self._groups = groups
        self._registry = registry
        self._seen: dict[int, tuple[int, int]] = {}  # group -> its epoch, and since when it is seen here
        self._proposed: dict[int, tuple[ElectMaster, int]] = {}  # group -> the last proposal, and when
        self._operator_choice: dict[int, tuple[int, int]] = {}  # group -> an operator's choice, and until when
        self._avoided: dict[int, tuple[Collection[int], int]] = {}  # group -> who is not to be master, and until when
        self._announced: dict[int, None] = {}  # groups with unclean election
        self._announcements = ElectionAnnouncements()

    def began(self, now_ms: int) -> None:
        """Begins as leader: heartbeats received as a follower count, earlier proposals do not."""
        self._registry.tick(now_ms)
        self._registry.complaints.began(now_ms)
        for table in (self._seen, self._proposed, self._operator_choice, self._avoided, self._announced):
            table.clear()
        self._announcements.clear()

    def tick(self, now_ms: int, time_ms: int) -> list[ElectMaster]:
        """Returns the commands to propose now."""
        if self._registry.tick(now_ms):
            logger.warning("this controller did not run for a while: replicas get the full timeout again")
            self._registry.complaints.began(now_ms)
        found = []
        for number in sorted(self._groups):
            group = self._groups[number]
            self._notice(group, now_ms)
            command = self._judge(group, now_ms, time_ms)
            if command is not None and not self._is_proposed(command, now_ms):
                found.append(self._proposing(command, now_ms))
        return found

    def is_calm(self, now_ms: int) -> bool:
        """Returns whether time alone cannot make an election due before the next heartbeats: every master serves.

        No replica or proxy complains, and no connection has ended. `Registry.heartbeat` reports a change at once.
        """
        registry = self._registry
        return registry.complaints.are_none(now_ms) and all(
            self._serves(group, now_ms) and all(registry.is_punctual(group.number, id_, now_ms) for id_ in group.voters)
            for group in self._groups.values()
        )

    def decide(
        self,
        group: int,
        candidate: int | None,
        now_ms: int,
        time_ms: int,
        *,
        master_epoch: int | None = None,
        sync_epoch: int | None = None,
        unclean: bool = False,
    ) -> ElectMaster | None:
        """Returns the command of an election asked for, of this candidate or of the best that is not master now.

        None when it was done already, which only `master_epoch` can tell. Where a majority acknowledges, the first
        command takes the master away, and `tick` elects the one wanted if its log allows. A planned switch-over
        is asked for by the old master, when it takes no more and the candidate has everything, with both epochs.
        `unclean`: an operator accepts the loss of records that only others have.
        Raises `UnknownGroup`, `UnknownReplica`, `StaleEpoch`, `NotElectable`.
        """
        there = self._groups.get(group)
        if there is None:
            raise UnknownGroup(f"there is no store group {group}")
        asked = candidate in {None, there.master} and there.master is not None
        if unclean and there.unclean_epoch <= (master_epoch or 0):
            asked = False  # the elections since then have accepted no loss
        if asked and master_epoch is not None and 1 <= there.master_epoch - master_epoch <= 2:
            return None  # this very election, asked for again
        if (there.master_epoch if master_epoch is None else master_epoch) != there.master_epoch or (
            there.sync_epoch if sync_epoch is None else sync_epoch
        ) != there.sync_epoch:
            raise StaleEpoch(f"store group {group} is at epoch {there.master_epoch}, sync epoch {there.sync_epoch}")
        if unclean:
            return self._accepted_loss(there, candidate, now_ms, time_ms)
        if candidate is not None:
            self._check_candidate(there, candidate, now_ms)
        if there.master is not None and candidate == there.master and self._serves(there, now_ms):
            raise NotElectable(
                f"replica {candidate} is already master of store group {group} in epoch {there.master_epoch}; name "
                "another one with --replica"
            )
        if candidate is not None:
            self._operator_choice[group] = (candidate, now_ms + OPERATOR_CHOICE_MS)
        among = None
        if there.master not in {None, candidate} and self._heartbeat_of(there, there.master, now_ms) is not None:
            among = self._others_in_sync(there, now_ms) if candidate is None else None
            if sync_epoch is None:  # an operator wants to be rid of it; a master that hands over says both epochs
                self._avoided[group] = ((there.master,), now_ms + OPERATOR_CHOICE_MS)
        command = self._successor(there, now_ms, time_ms, only=candidate, among=among)
        if command is None:
            raise NotElectable(not_electable(there, self._alive(there, there.sync_set, now_ms)))
        if command.candidate is not None and candidate not in {None, command.candidate}:
            raise NotElectable(f"store group {group}: {command.candidate} has the longest log, not {candidate}")
        return self._proposing(command, now_ms)

    # ---- judging

    def _notice(self, group: Group, now_ms: int) -> None:
        if self._seen.get(group.number, (-1, 0))[0] != group.master_epoch:
            self._seen[group.number] = (group.master_epoch, now_ms)
        if group.config.unclean_election != (group.number in self._announced):
            if group.config.unclean_election:
                self._announced[group.number] = None
                logger.warning("store group %d: unclean elections MAY LOSE acknowledged writes", group.number)
            else:
                del self._announced[group.number]

    def _judge(self, group: Group, now_ms: int, time_ms: int) -> ElectMaster | None:
        if group.master is None:
            return (
                self._first(group, now_ms, time_ms) if not group.sync_set else self._successor(group, now_ms, time_ms)
            )
        if not self._registry.alive(group.number, group.master, now_ms):
            return self._successor(group, now_ms, time_ms) or self._without_master(group, now_ms, time_ms)
        heartbeat = self._heartbeat_of(group, group.master, now_ms)
        if heartbeat is None:
            return None
        if self._serves(group, now_ms):
            self._announcements.served(group.number)
            return self._by_complaint(group, now_ms, time_ms)
        if self._registry.served(group.number, group.master) >= group.master_epoch:
            return self._successor(group, now_ms, time_ms, after=group.master)  # its disk may have failed
        if self._registry.restarted(group.number, group.master, self._seen[group.number][1]):
            return self._successor(
                group, now_ms, time_ms, after=group.master
            )  # it does not know what it was elected to
        if now_ms - self._seen[group.number][1] >= TAKE_OVER_MS:
            return self._successor(group, now_ms, time_ms, after=group.master)
        return None

    def _by_complaint(self, group: Group, now_ms: int, time_ms: int) -> ElectMaster | None:
        """Returns the election of a reachable replica if the master sends heartbeats but proxies do not reach it."""
        complaints, heartbeats = self._registry.complaints, self._registry.voters(group, now_ms)
        among = complaints.judge(group, heartbeats, now_ms)
        command = self._successor(group, now_ms, time_ms, among=among) if among else None
        if command is None:
            return None
        if not self._is_proposed(command, now_ms):
            logger.warning(
                "store group %d: master %s is alive but %s: electing replica %s",
                group.number,
                group.master,
                complaints.why(group, heartbeats, now_ms),
                command.candidate,
            )
        self._avoided[group.number] = (set(heartbeats).difference(among), now_ms + OPERATOR_CHOICE_MS)
        complaints.moved(group, now_ms)
        return command

    def _serves(self, group: Group, now_ms: int) -> bool:
        heartbeat = None if group.master is None else self._heartbeat_of(group, group.master, now_ms)
        return heartbeat is not None and heartbeat.master and heartbeat.master_epoch >= group.master_epoch

    def _first(self, group: Group, now_ms: int, time_ms: int) -> ElectMaster | None:
        alive = self._alive(group, group.voters, now_ms)
        if not are_enough_at_first(group, alive, now_ms - self._seen[group.number][1]):
            return None
        return self._command(group, self._best(group, alive, now_ms), time_ms)

    def _successor(
        self,
        group: Group,
        now_ms: int,
        time_ms: int,
        *,
        after: int | None = None,
        only: int | None = None,
        among: Collection[int] | None = None,
    ) -> ElectMaster | None:
        """Returns the command that elects a new master, or makes ready for it; None while that is not safe.

        `after`: this one has had its time. If no other replica can be elected it is elected again: it may have been
        started again. `among`: only these are considered.
        """
        alive = self._alive(group, group.sync_set or group.voters, now_ms)
        if group.config.acknowledge == "quorum" and group.sync_set:
            found = self._successor_by_quorum(group, alive, now_ms, time_ms)
            return found or self._unclean(group, now_ms, time_ms, only)
        alive = {id_: one for id_, one in alive.items() if only in {None, id_} and (among is None or id_ in among)}
        alive = self._able(group, alive, now_ms, after=after, wait=only is None, sound_only=among is not None)
        if alive:
            return self._command(group, self._best(group, alive, now_ms), time_ms)
        return self._unclean(group, now_ms, time_ms, only) if among is None else None

    def _able(
        self,
        group: Group,
        alive: Mapping[int, Heartbeat],
        now_ms: int,
        *,
        after: int | None = None,
        wait: bool = True,
        sound_only: bool = False,
    ) -> dict[int, Heartbeat]:
        """Returns the live replicas that may be elected: the sound ones, or without any the damaged ones.

        The latter only when the rest of the set has been silent for a while: one of them may be sound, and come back.
        """
        if not group.sync_set:
            return dict(alive)
        sound = {id_: heartbeat for id_, heartbeat in alive.items() if not heartbeat.damaged}
        sound = {id_: heartbeat for id_, heartbeat in sound.items() if not heartbeat.expired} or sound
        sound = {id_: heartbeat for id_, heartbeat in sound.items() if id_ != after} or sound
        if sound or sound_only:
            return sound
        silent = [id_ for id_ in group.sync_set if self._heartbeat_of(group, id_, now_ms) is None]
        dead_ms = max((self._registry.dies_ms(group.number, id_) for id_ in silent), default=now_ms - DAMAGED_AFTER_MS)
        if wait and now_ms < dead_ms + DAMAGED_AFTER_MS:
            return {}
        whole = {id_: heartbeat for id_, heartbeat in alive.items() if not heartbeat.cut_short}
        return {id_: heartbeat for id_, heartbeat in whole.items() if id_ != after} or whole

    def _successor_by_quorum(
        self, group: Group, alive: Mapping[int, Heartbeat], now_ms: int, time_ms: int
    ) -> ElectMaster | None:
        enough = majority(len(group.sync_set))
        # A replica that has lost the end of its log keeps its promise, but its log does not show which writes were
        # acknowledged there: enough others have to be whole.
        whole_min = len(group.sync_set) - len(group.sync_set) // 2
        if sum(not heartbeat.cut_short for heartbeat in alive.values()) < whole_min:
            return None
        if group.master is not None:
            return self._command(group, None, time_ms) if len(alive) >= enough else None
        fresh = {id_: heartbeat for id_, heartbeat in alive.items() if not heartbeat.expired}
        found = self._longest_promised(group, fresh, now_ms, time_ms, whole_min=whole_min)
        if found is None and (len(fresh) < enough or now_ms - self._seen[group.number][1] >= PROMISE_MS):
            found = self._longest_promised(group, alive, now_ms, time_ms, whole_min=whole_min)
        return found

    def _longest_promised(
        self, group: Group, alive: Mapping[int, Heartbeat], now_ms: int, time_ms: int, *, whole_min: int
    ) -> ElectMaster | None:
        """Returns the election of the longest log of those that know of the newest epoch, if they are enough."""
        promised = those_promised(group, alive, self._avoided_in(group, now_ms), whole_min)
        wanted = self._wanted_in(group, now_ms)
        whole = {id_: heartbeat for id_, heartbeat in promised.items() if not heartbeat.cut_short}
        if len(whole) < whole_min or (wanted in alive and wanted not in promised):
            return None
        best = self._best(group, whole, now_ms)
        longest = whole[best].log_epoch, whole[best].log_end
        ends = tuple(
            LogEnd(
                replica=id_,
                master_epoch=heartbeat.master_epoch,
                log_epoch=heartbeat.log_epoch,
                log_end=heartbeat.log_end,
            )
            for id_, heartbeat in sorted(promised.items())
            if (heartbeat.log_epoch, heartbeat.log_end) <= longest
        )
        return self._command(group, best, time_ms, ends=ends) if len(ends) >= majority(len(group.sync_set)) else None

    def _unclean(self, group: Group, now_ms: int, time_ms: int, only: int | None) -> ElectMaster | None:
        """Returns the best of those that may lack acknowledged records, if that is allowed and no other one came."""
        if not group.config.unclean_election or not group.sync_set:
            return None
        if only is None and now_ms < UNCLEAN_AFTER_MS + max(
            self._registry.dies_ms(group.number, id_) for id_ in group.sync_set
        ):
            return None
        alive = self._alive(group, group.voters, now_ms)
        alive = {id_: heartbeat for id_, heartbeat in alive.items() if only in {None, id_}}
        if not alive:
            return None
        return self._command(group, self._best(group, alive, now_ms), time_ms, unclean=True)

    def _without_master(self, group: Group, now_ms: int, time_ms: int) -> ElectMaster | None:
        """Vacates the office of a dead master without successor, unless no heartbeats come at all."""
        assert group.master is not None
        if now_ms < self._registry.dies_ms(group.number, group.master) + VACATE_AFTER_MS:
            return None
        return self._command(group, None, time_ms) if self._alive(group, group.voters, now_ms) else None

    def _others_in_sync(self, group: Group, now_ms: int) -> Collection[int]:
        """Returns the replicas that can replace a living master. Raises `NotElectable`, which says why none can."""
        alive = self._alive(group, (id_ for id_ in group.sync_set if id_ != group.master), now_ms)
        found = {id_ for id_, heartbeat in alive.items() if not heartbeat.expired}
        if not found:
            rest = [id_ for id_ in group.voters if id_ != group.master]
            silent = [id_ for id_ in rest if self._heartbeat_of(group, id_, now_ms) is None]
            behind = f"behind: {rest}" if rest else "the group has no other voter"
            why = f"no other replica is in sync ({f'no heartbeats from {silent}' if silent else behind})"
            why = f"the certificates of the others have expired: {listed(sorted(alive))}" if alive else why
            raise NotElectable(
                f"store group {group.number}: replica {group.master} stays master in epoch {group.master_epoch}, "
                f"for {why}"
            )
        return found

    def _accepted_loss(self, group: Group, candidate: int | None, now_ms: int, time_ms: int) -> ElectMaster:
        """Elects uncleanly, as an operator has asked for. Raises `UnknownReplica`, `NotElectable`."""
        alive = self._alive(group, group.voters, now_ms)
        alive = candidates(group, alive, wanted=candidate, serving=self._serves(group, now_ms))
        command = self._command(group, self._best(group, alive, now_ms), time_ms, unclean=True)
        return self._proposing(msgspec.structs.replace(command, accepted=True), now_ms)

    # ---- candidates

    def _heartbeat_of(self, group: Group, id_: int, now_ms: int) -> Heartbeat | None:
        return self._registry.heartbeat_if_alive(group.number, id_, now_ms)

    def _alive(self, group: Group, ids: Iterable[int], now_ms: int) -> dict[int, Heartbeat]:
        """Returns the newest heartbeats of the replicas that are known to be alive; they can be elected."""
        heartbeats = {id_: self._registry.spoke(group.number, id_, now_ms) for id_ in ids if id_ in group.voters}
        return {id_: one for id_, one in heartbeats.items() if one is not None}

    def _wanted_in(self, group: Group, now_ms: int) -> int | None:
        wanted, until_ms = self._operator_choice.get(group.number, (None, 0))
        return wanted if now_ms < until_ms else None

    def _avoided_in(self, group: Group, now_ms: int) -> Collection[int]:
        avoided, until_ms = self._avoided.get(group.number, ((), 0))
        return avoided if now_ms < until_ms else ()

    def _best(self, group: Group, alive: Mapping[int, Heartbeat], now_ms: int) -> int:
        wanted, avoided = self._wanted_in(group, now_ms), self._avoided_in(group, now_ms)

        def rank(id_: int) -> tuple[int, ...]:
            heartbeat, replica = alive[id_], group.replica(id_)
            assert replica is not None
            least = -heartbeat.damaged_bytes if heartbeat.damaged else 0
            return (
                heartbeat.log_epoch,
                heartbeat.log_end,
                not heartbeat.damaged,
                least,
                not heartbeat.expired,
                id_ not in avoided,
                id_ == wanted,
                replica.priority,
                -id_,
            )

        return max(alive, key=rank)

    def _check_candidate(self, group: Group, candidate: int, now_ms: int) -> None:
        if group.replica(candidate) is None:
            raise UnknownReplica(f"store group {group.number} has no replica {candidate}")
        if candidate not in group.voters:
            raise NotElectable(f"replica {candidate} of store group {group.number} is a learner")
        if (
            group.sync_set
            and candidate not in group.sync_set
            and (not group.config.unclean_election or self._alive(group, group.sync_set, now_ms))
        ):
            raise NotElectable(f"replica {candidate} of store group {group.number} is not in sync")
        heartbeat = self._heartbeat_of(group, candidate, now_ms)
        if heartbeat is None:
            raise NotElectable(f"replica {candidate} of store group {group.number} sends no heartbeats")
        check_fit(group, heartbeat, self._alive(group, group.sync_set, now_ms))

    # ---- commands

    def _command(
        self,
        group: Group,
        candidate: int | None,
        time_ms: int,
        *,
        ends: tuple[LogEnd, ...] = (),
        unclean: bool = False,
    ) -> ElectMaster:
        return ElectMaster(
            group=group.number,
            candidate=candidate,
            master_epoch=group.master_epoch,
            sync_epoch=group.sync_epoch,
            ends=ends,
            unclean=unclean,
            time_ms=time_ms,
        )

    def _proposing(self, command: ElectMaster, now_ms: int) -> ElectMaster:
        self._proposed[command.group] = (command, now_ms)
        group = self._groups[command.group]
        silent = [one.id for one in group.replicas if self._heartbeat_of(group, one.id, now_ms) is None]
        self._announcements.electing(command, group, self._damaged(command), silent)
        return command

    def _damaged(self, command: ElectMaster) -> Heartbeat | None:
        """Returns a candidate's last heartbeat where its log is damaged; None otherwise."""
        heartbeat = self._registry.last(command.group, command.candidate) if command.candidate is not None else None
        return heartbeat if heartbeat is not None and heartbeat.damaged else None

    def _is_proposed(self, command: ElectMaster, now_ms: int) -> bool:
        """Returns whether something on these epochs was proposed a moment ago, and may be on its way."""
        before = self._proposed.get(command.group)
        return (
            before is not None
            and (before[0].master_epoch, before[0].sync_epoch) == (command.master_epoch, command.sync_epoch)
            and now_ms - before[1] < AGAIN_MS
        )
