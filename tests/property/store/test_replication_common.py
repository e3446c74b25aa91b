"""Any logs that elections can make: what their lists of epochs say they have in common is what they have."""

from hypothesis import given
from hypothesis import strategies as st

from store.replication.epochs import EpochList, SavedEpochs, decode_epochs, encode_epochs

REPLICAS = 4


class Replica:
    """A log of which every place has the epoch it was written in, and its list of epochs."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.epochs = EpochList()

    def follow(self, master: "Replica", size: int) -> None:
        """Cuts what the master does not have, and copies this much of what follows."""
        end = len(self.log)
        common = self.epochs.common(end, master.epochs, len(master.log))
        at = common.at if common is not None else 0
        assert self.log[:at] == master.log[:at]
        del self.log[at:]
        self.epochs = self.epochs.until(common.epoch) if common is not None else EpochList()
        self.log += master.log[at : at + size]
        self.epochs = self.epochs.extended(master.epochs, len(self.log))


def true_common(one: Replica, other: Replica) -> int:
    same = 0
    for mine, theirs in zip(one.log, other.log, strict=False):
        if mine != theirs:
            break
        same += 1
    return same


steps = st.lists(
    st.tuples(
        st.sampled_from(["elect", "write", "write", "follow", "follow", "lose"]),
        st.integers(0, REPLICAS - 1),
        st.integers(0, 6),
    ),
    max_size=60,
)


@given(steps)
def test_the_lists_know_how_far_logs_are_the_same(history):
    """Whoever is elected, with whatever it lacks: unclean elections too."""
    replicas = [Replica() for _ in range(REPLICAS)]
    master, epoch = None, 0
    for what, which, size in history:
        one = replicas[which]
        if what == "elect":
            epoch += 1
            master = one
            one.epochs = one.epochs.append(epoch, len(one.log))
        elif what == "write" and master is not None:
            master.log += [epoch] * size
        elif what == "follow" and master is not None and one is not master:
            one.follow(master, size)
        elif what == "lose":  # a crash: its master is none any more
            del one.log[max(len(one.log) - size, 0) :]
            one.epochs = one.epochs.cut(len(one.log))
            master = None if one is master else master
        saved = SavedEpochs(one.epochs, epoch, size)
        assert decode_epochs(encode_epochs(saved)) == saved
        for other in replicas:
            common = one.epochs.common(len(one.log), other.epochs, len(other.log))
            assert (common.at if common is not None else 0) == true_common(one, other)
