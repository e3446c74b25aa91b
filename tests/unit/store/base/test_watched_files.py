"""Files are read again when they change, and looked at no more often than is said."""

import os

import pytest

from store.base.watched_files import WatchedFiles


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_text("one")
    return path


def replace(path, text):
    """Replaces a file with one of the same times, as tools do that copy them."""
    found, new = path.stat(), path.with_name("new")
    new.write_text(text)
    os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))
    new.replace(path)


def test_a_file_that_stays_has_not_changed(file):
    watched = WatchedFiles((file, None))
    assert not watched.changed()


def test_a_change_is_said_once(file):
    watched = WatchedFiles((file,))
    file.write_text("three")
    assert watched.changed()
    assert not watched.changed()


def test_a_file_of_the_same_time_and_length_is_another_one(file):
    watched = WatchedFiles((file,))
    replace(file, "two")
    assert watched.changed()


def test_a_file_that_comes_and_goes_changes(file, tmp_path):
    later = tmp_path / "later"
    watched = WatchedFiles((file, later))
    later.write_text("x")
    assert watched.changed()
    file.unlink()
    assert watched.changed()
    assert not watched.changed()


def test_unread_files_have_changed_at_first_though_they_are_not_there(tmp_path):
    watched = WatchedFiles((tmp_path / "none",), unread=True)
    assert watched.changed()
    assert not watched.changed()


def test_files_that_could_not_be_read_are_read_again(file):
    watched = WatchedFiles((file,))
    watched.read_again()
    assert watched.changed()
    assert not watched.changed()


def test_files_are_looked_at_once_in_an_interval(file):
    watched = WatchedFiles((file,), interval_ms=1_000)
    assert not watched.changed_by(5_000)
    file.write_text("three")
    assert not watched.changed_by(5_999)
    assert watched.changed_by(6_000)


def test_the_first_look_is_at_once(file):
    assert WatchedFiles((file,), interval_ms=1_000, unread=True).changed_by(0)


def test_files_are_looked_at_though_the_clock_was_set_back(file):
    watched = WatchedFiles((file,), interval_ms=1_000)
    assert not watched.changed_by(3_600_000)
    file.write_text("three")
    assert watched.changed_by(5_000)
