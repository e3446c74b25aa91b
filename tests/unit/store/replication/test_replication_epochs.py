import struct

import google_crc32c
import pytest

from store.disk.files import OsFiles
from store.format.frame import HEADER, Header
from store.replication.epoch_file import EPOCH_FILES, EpochFile
from store.replication.epochs import (
    EPOCHS_MAX,
    OF_OLDER_VERSION,
    Common,
    EpochList,
    SavedEpochs,
    decode_epochs,
    encode_epochs,
)
from store.replication.errors import BadEpochs
from tests.support.store.replication_kit import FrameLog


def epochs(*entries):
    return EpochList.of(entries)


def of_an_older_version(promised, *entries):
    body = struct.pack("<QI", promised, len(entries)) + b"".join(struct.pack("<QQ", *entry) for entry in entries)
    return b"HGE1" + struct.pack("<I", google_crc32c.value(body)) + body


def test_an_epoch_follows_where_the_one_before_ends():
    assert epochs((1, 0)).append(3, 100) == epochs((1, 0), (3, 100))
    assert EpochList().append(1, 7) == epochs((1, 7))


def test_an_epoch_without_data_is_replaced():
    assert epochs((1, 0), (2, 100)).append(3, 100) == epochs((1, 0), (3, 100))


@pytest.mark.parametrize("entry", [(1, 200), (2, 200), (3, 99)])
def test_epochs_and_starts_rise(entry):
    with pytest.raises(BadEpochs):
        epochs((1, 0), (2, 100)).append(*entry)


@pytest.mark.parametrize("entries", [[(2, 0), (1, 5)], [(1, 0), (1, 5)], [(1, 5), (2, 5)], [(1, 6), (2, 5)]])
def test_a_list_from_elsewhere_rises_too(entries):
    with pytest.raises(BadEpochs):
        EpochList.of(entries)


def test_cut_keeps_what_begins_at_the_end():
    assert epochs((1, 0), (2, 100), (3, 200)).cut(199) == epochs((1, 0), (2, 100))
    assert epochs((1, 0), (2, 100), (3, 200)).cut(200) == epochs((1, 0), (2, 100), (3, 200))
    assert epochs((1, 10)).cut(9) == EpochList()


def test_trim_keeps_the_start_of_what_is_left():
    whole = epochs((1, 0), (2, 100), (3, 200))
    assert whole.trim(99) == whole
    assert whole.trim(100) == epochs((2, 100), (3, 200))
    assert whole.trim(150) == epochs((2, 100), (3, 200))
    assert whole.trim(900) == epochs((3, 200))
    assert EpochList().trim(5) == EpochList()


def test_which_epoch_an_offset_is_of():
    whole = epochs((1, 10), (2, 100))
    assert [whole.epoch_at(at) for at in (9, 10, 99, 100, 900)] == [None, 1, 1, 2, 2]
    assert [whole.end_at(at, 500) for at in (9, 10, 99, 100, 499)] == [10, 100, 100, 500, 500]


def test_extended_by_what_another_has_up_to_an_end():
    other = epochs((1, 0), (2, 100), (4, 200))
    assert epochs((1, 0)).extended(other, 199) == epochs((1, 0), (2, 100))
    assert epochs((1, 0)).extended(other, 200) == other
    assert EpochList().extended(other, 0) == epochs((1, 0))


@pytest.mark.parametrize(
    ("mine", "end", "theirs", "their_end", "common"),
    [
        ([(1, 0)], 50, [(1, 0)], 80, Common(1, 50)),
        ([(1, 0)], 80, [(1, 0)], 50, Common(1, 50)),
        ([(1, 0), (2, 100)], 150, [(1, 0), (3, 100)], 200, Common(1, 100)),
        ([(1, 0), (2, 100)], 150, [(1, 0), (3, 120)], 200, Common(1, 100)),
        ([(1, 0), (2, 120)], 150, [(1, 0), (3, 100)], 200, Common(1, 100)),
        ([(1, 0), (2, 100)], 100, [(1, 0), (2, 100)], 400, Common(2, 100)),
        ([(1, 0), (2, 100)], 300, [(2, 100), (3, 200)], 400, Common(2, 200)),
        ([(1, 0)], 50, [(2, 0)], 50, None),
        ([(1, 0)], 50, [(1, 10)], 50, None),
        ([], 0, [(1, 0)], 50, None),
    ],
)
def test_what_two_logs_have_in_common(mine, end, theirs, their_end, common):
    assert epochs(*mine).common(end, epochs(*theirs), their_end) == common
    assert epochs(*theirs).common(their_end, epochs(*mine), end) == common


def test_a_list_can_be_made_from_frames():
    log = FrameLog(1000).fill(2, 2).fill(5, 1).fill(6, 3)
    headers = [Header(*HEADER.unpack_from(frame)) for frame in log.frames]
    assert EpochList.of_frames(headers) == epochs((2, 1000), (5, 1400), (6, 1600))


@pytest.mark.slow
def test_only_so_many_are_kept():
    full = [(n + 1, n * 10) for n in range(EPOCHS_MAX)]
    made = EpochList.of(full).append(EPOCHS_MAX + 1, EPOCHS_MAX * 10)
    assert len(made) == EPOCHS_MAX
    assert made.entries[0] == (2, 10)
    with pytest.raises(BadEpochs):
        EpochList.of([*full, (EPOCHS_MAX + 1, EPOCHS_MAX * 10)])


@pytest.mark.parametrize("entries", [[], [(1, 0)], [(1, 1 << 62), (1 << 40, (1 << 63) - 1)]])
def test_encoded_and_decoded(entries):
    made = EpochList.of(entries)
    saved = SavedEpochs(made, 1 << 40, 1 << 50)
    assert decode_epochs(encode_epochs(saved)) == saved


def test_a_list_of_an_older_version_was_saved_less_often_than_any():
    assert decode_epochs(of_an_older_version(3, (1, 0), (2, 100))) == (epochs((1, 0), (2, 100)), 3, OF_OLDER_VERSION)


def test_every_flipped_bit_and_every_cut_is_noticed():
    data = encode_epochs(SavedEpochs(epochs((1, 0), (2, 100)), 3, 1))
    for size in range(len(data)):
        with pytest.raises(BadEpochs):
            decode_epochs(data[:size])
    for bit in range(8 * len(data)):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadEpochs):
            decode_epochs(bytes(bad))


def test_less_promised_than_there_is_is_no_list():
    with pytest.raises(BadEpochs):
        decode_epochs(encode_epochs(SavedEpochs(epochs((5, 0)), 4)))


SAVED = [(epochs((1, 0)), 1), (EpochList(), 9), (epochs((1, 0), (9, 5)), 9)]


def test_files_are_replaced_whole(tmp_path):
    file = EpochFile(OsFiles(), tmp_path)
    assert file.load() is None
    for saved in SAVED:
        (tmp_path / "epochs.new").write_bytes(b"what a crash has left")
        file.save(*saved)
        again = EpochFile(OsFiles(), tmp_path)
        assert (again.load(), again.whole) == (saved, True)
    for name in EPOCH_FILES:
        (tmp_path / name).write_bytes(b"something else, long enough")
    with pytest.raises(BadEpochs):
        file.load()


@pytest.mark.parametrize("name", EPOCH_FILES)
@pytest.mark.parametrize("harm", ["damaged", "gone", "a write lost"])
def test_a_file_that_is_damaged_or_older_counts_less_than_the_other(tmp_path, name, harm):
    file, path = EpochFile(OsFiles(), tmp_path), tmp_path / name
    for saved in SAVED:
        before = path.read_bytes() if path.exists() else b""
        file.save(*saved)
    match harm:
        case "damaged":
            path.write_bytes(b"something else, long enough")
        case "gone":
            path.unlink()
        case _:
            path.write_bytes(before)
    again = EpochFile(OsFiles(), tmp_path)
    assert (again.load(), again.whole) == (SAVED[-1], False)
    again.save(*SAVED[-1])
    assert (again.load(), again.whole) == (SAVED[-1], True)


def test_a_list_that_an_older_version_has_written_since_counts(tmp_path):
    """It writes one file alone, and leaves the other as it was."""
    file = EpochFile(OsFiles(), tmp_path)
    file.save(epochs((1, 0)), 2)
    for promised, entries in ((8, [(1, 0), (8, 50)]), (2, [(1, 0)])):
        (tmp_path / "epochs").write_bytes(of_an_older_version(promised, *entries))
        again = EpochFile(OsFiles(), tmp_path)
        assert (again.load(), again.whole) == ((epochs(*entries), promised), False)
    (tmp_path / "epochs").write_bytes(of_an_older_version(1, (1, 0)))
    assert again.load() == (epochs((1, 0)), 2)
    again.save(epochs((1, 0), (9, 60)), 9, beyond=20)
    assert (again.load(), again.whole, again.saves) == ((epochs((1, 0), (9, 60)), 9), True, 21)
    assert EpochFile(OsFiles(), tmp_path).load() == (epochs((1, 0), (9, 60)), 9)
