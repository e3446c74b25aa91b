"""Transcripts of Raft nodes: a file of `testdata` shows a subject; `raft_transcript` replays it.

After a change that is meant, `HEADGATE_REWRITE_TRANSCRIPTS=1` writes what they do now into the files: read the diff.
"""

import os
from pathlib import Path

import pytest

from tests.support.controller.raft_transcript import replay

FILES = sorted((Path(__file__).parent / "testdata").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_nodes_do_what_the_transcript_says(path):
    written = path.read_text()
    replayed = replay(written)
    if os.environ.get("HEADGATE_REWRITE_TRANSCRIPTS"):
        path.write_text(replayed)
        written = replayed
    assert replayed.splitlines() == written.splitlines()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_transcript_begins_with_what_it_shows(path):
    first = path.read_text().partition("\n\n")[0]
    assert all(line.startswith("# ") for line in first.splitlines())
    assert first.endswith(".")


def test_a_transcript_that_says_something_else_is_noticed():
    text = FILES[0].read_text()
    assert replay(text.replace("term 2", "term 7")) == text
