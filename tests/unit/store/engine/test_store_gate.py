"""The gate: groups wait for the other replicas, and leave in order."""

import pytest

from store.api.log import Appended
from store.base.errors import AppendOutcomeUnknown, StoreFull
from store.engine.commit import Committed
from store.engine.gate import Gate
from store.format.chunks import QueueEnd
from store.format.placed import Placed
from store.format.records import KvPut
from store.log.run import RunBuilder
from tests.support.store.store_kit import frame, records_frame

pytestmark = pytest.mark.anyio

SIZE = 200


class GateRig:
    def __init__(self):
        self.out = []
        self.gate = Gate(0, self.out.append)
        self.end = 0
        self.builder = RunBuilder(lambda _: QueueEnd())

    def group(self, *names, records=False):
        """Returns a group of frames on disk; the call for each frame is its name."""
        placed = []
        for _ in names:
            one = records_frame(KvPut("k", b"v")) if records else frame((16, b"x"))
            placed.append(Placed(self.end, 0, one.header(log_offset=self.end, epoch=1, stored_at_ms=0), one))
            self.end = placed[-1].end
        outcomes = [(name, Appended(one.start)) for name, one in zip(names, placed, strict=True)]
        self.gate.add(Committed(outcomes, SIZE, self.builder.build(placed)))
        return self.end

    def refuse(self, name, outcome):
        self.gate.add(Committed([(name, outcome)], SIZE))

    def taken(self):
        """Returns what came out: (names answered, whether it can be read), in order."""
        out, self.out[:] = list(self.out), []
        return [("".join(name for name, _ in one.outcomes), one.run is not None) for one in out]


async def test_a_group_leaves_when_all_of_it_is_confirmed():
    rig = GateRig()
    first = rig.group("a", "b")
    second = rig.group("c")
    assert rig.taken() == []
    rig.gate.confirm(first - 1, 0)
    assert rig.taken() == []
    rig.gate.confirm(first, 0)
    assert rig.taken() == [("ab", True)]
    rig.gate.confirm(first - 10, 0)
    rig.gate.confirm(second, 0)
    assert rig.taken() == [("c", True)]
    rig.gate.confirm(10_000, 0)
    rig.group("d")
    assert rig.taken() == [("d", True)]


async def test_refusals_and_repeats_keep_their_place():
    rig = GateRig()
    rig.refuse("a", StoreFull("no"))
    assert rig.taken() == [("a", False)]
    end = rig.group("b")
    rig.refuse("c", StoreFull("no"))
    rig.refuse("d", Appended(0, duplicate=True))
    assert rig.taken() == []
    rig.gate.confirm(end, end)
    assert rig.taken() == [("b", True), ("c", False), ("d", False)]


async def test_what_is_acknowledged_earlier_is_answered_and_read_later():
    rig = GateRig()
    ends = [rig.group(name) for name in "abc"]
    rig.gate.confirm(0, ends[1])
    assert rig.taken() == [("a", False), ("b", False)]
    rig.gate.confirm(ends[0], ends[1])
    assert rig.taken() == [("", True)]
    rig.gate.confirm(ends[2], ends[2])
    assert rig.taken() == [("", True), ("c", True)]


async def test_the_stores_own_records_are_answered_when_they_are_applied():
    rig = GateRig()
    first, second, third = rig.group("a"), rig.group("b", records=True), rig.group("c")
    rig.gate.confirm(0, third)
    assert rig.taken() == [("a", False)]
    rig.gate.confirm(second, third)
    assert first < second
    assert rig.taken() == [("", True), ("b", True), ("c", False)]


async def test_giving_up_leaves_what_is_not_confirmed_unknown():
    rig = GateRig()
    end = rig.group("a")
    rig.group("b")
    rig.refuse("c", StoreFull("no"))
    rig.refuse("d", Appended(0, duplicate=True))
    rig.gate.confirm(end, end)
    assert rig.taken() == [("a", True)]
    rig.gate.give_up()
    out = list(rig.out)
    assert rig.taken() == [("b", False), ("c", False), ("d", False)]
    outcomes = [type(outcome) for one in out for _, outcome in one.outcomes]
    assert outcomes == [AppendOutcomeUnknown, StoreFull, AppendOutcomeUnknown]
    rig.group("e")
    assert rig.taken() == [("e", False)]
    await rig.gate.emptied()


async def test_whoever_is_told_may_confirm_the_next():
    rig = GateRig()
    ends = [rig.group(name) for name in "abc"]
    seen = []

    def through(group):
        seen.append("<" + group.outcomes[0][0])
        rig.gate.confirm(ends[-1], ends[-1])
        seen.append(">")

    rig.gate._let_through = through
    rig.gate.confirm(ends[0], ends[0])
    assert seen == ["<a", ">", "<b", ">", "<c", ">"]
