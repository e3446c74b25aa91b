"""The file of OSCORE contexts is replaced whole, and stays readable for the gateway's user."""

import errno
import os

import pytest

from gateway.oscore.contexts_file import FileContext, write_contexts

CONTEXT = FileContext(user="dev42", client_id="01", server_id="", secret="00" * 16)


def test_a_new_file_is_for_its_owner_alone(tmp_path):
    write_contexts(tmp_path / "contexts", [CONTEXT])
    assert (tmp_path / "contexts").stat().st_mode & 0o777 == 0o600


def test_a_file_keeps_its_owner_and_mode(tmp_path):
    """Root adds a context, and the gateway, of another user, reads the file again."""
    path = tmp_path / "contexts"
    write_contexts(path, [CONTEXT])
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 65_534, 0)
    before = path.stat()
    write_contexts(path, [CONTEXT, CONTEXT])
    after = path.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
    assert after.st_ino != before.st_ino


def test_a_full_disk_leaves_the_file_as_it_was_and_names_it(tmp_path, monkeypatch):
    path = tmp_path / "contexts"
    write_contexts(path, [CONTEXT])
    before = path.read_bytes()

    def full(_fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_contexts(path, [])
    assert caught.value.filename == str(path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["contexts"]
