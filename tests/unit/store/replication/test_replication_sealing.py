"""Every replica of a group comes to the same verdict on which of them has other frames than the rest."""

import itertools

import pytest

from store.replication.sealing import SealVerdict, judge

A, B, C = b"a", b"b", b"c"


@pytest.mark.parametrize(
    ("own", "others", "verdict"),
    [
        (A, {}, SealVerdict.UNKNOWN),
        (A, {2: b"", 3: b""}, SealVerdict.UNKNOWN),
        (A, {2: A}, SealVerdict.SAME),
        (A, {2: A, 3: b""}, SealVerdict.SAME),
        (A, {2: B}, SealVerdict.UNDECIDED),
        (A, {2: B, 3: A}, SealVerdict.OTHERS),
        (B, {2: A, 3: A}, SealVerdict.OWN),
        (A, {2: B, 3: b""}, SealVerdict.OTHERS),
        (A, {2: B, 3: C}, SealVerdict.OTHERS),
    ],
)
def test_the_minority_is_wrong_and_among_equals_the_master_is_right(own, others, verdict):
    assert judge(own, others, replica=1, replicas=(1, 2, 3), master=1) is verdict


def test_a_replica_of_two_gives_way_to_its_master():
    assert judge(A, {1: B}, replica=2, replicas=(1, 2), master=1) is SealVerdict.OWN
    assert judge(B, {2: A}, replica=1, replicas=(1, 2), master=1) is SealVerdict.OTHERS
    assert judge(B, {2: A}, replica=1, replicas=(1, 2), master=None) is SealVerdict.UNDECIDED


@pytest.mark.parametrize("master", [None, 1, 2, 3])
def test_all_agree_on_who_is_wrong_and_not_all_are(master):
    for digests in itertools.product([b"", A, B, C], repeat=3):
        held = dict(zip((1, 2, 3), digests, strict=True))
        verdicts = {
            id_: judge(own, {k: v for k, v in held.items() if k != id_}, replica=id_, replicas=(1, 2, 3), master=master)
            for id_, own in held.items()
            if own
        }
        wrong = {id_ for id_, verdict in verdicts.items() if verdict is SealVerdict.OWN}
        assert not wrong or wrong < verdicts.keys()
        right = {held[id_] for id_, verdict in verdicts.items() if verdict is SealVerdict.OTHERS}
        assert len(right) <= 1
        assert not wrong & {id_ for id_ in held if held[id_] in right}
