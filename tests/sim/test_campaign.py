"""The record of a long run of histories that is interrupted and goes on."""

import json

import pytest

from tests.sim import campaign

FIRST, SEEDS = 1_000, 3 * campaign.BLOCK


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Returns a record's file; seeds in `bad` fail, and blocks in `endless` do not end."""
    bad, endless, played = {"1003", "1060"}, {"1100"}, []

    def play_block(first, count, _kind):
        played.append((first, count))
        if str(first) in endless and count > 1:
            return {str(first): f"{campaign.UNFINISHED} has not ended"}
        return {str(seed): "wrong" for seed in range(first, first + count) if str(seed) in bad}

    monkeypatch.setattr(campaign, "play_block", play_block)
    monkeypatch.setattr(campaign, "commit", lambda: "now")
    path = tmp_path / "results" / "record.json"

    def run():
        failed = campaign.run(FIRST, SEEDS, 2, path, "joint")
        found = json.loads(path.read_text())
        assert len(found["failed"]) == failed
        return found

    run.bad, run.endless, run.played = bad, endless, played
    return run


def test_seeds_that_pass_after_a_mend_are_kept_as_mended(record):
    assert set(record()["failed"]) == {"1003", "1060", "1100"}
    record.bad.remove("1003")
    record.played.clear()
    found = record()
    assert set(found["failed"]) == {"1060", "1100"}
    assert found["mended"] == {"1003": {"failed": "wrong", "passes_at": "now"}}
    assert sorted(record.played) == [(1_003, 1), (1_060, 1), (1_100, campaign.BLOCK)]
    assert found["played"] == SEEDS
    assert found["commits"] == ["now"]


def test_a_block_that_did_not_end_is_played_whole(record):
    record()
    record.endless.clear()
    record.bad.add("1140")
    record.played.clear()
    found = record()
    assert (1_100, campaign.BLOCK) in record.played
    assert set(found["failed"]) == {"1003", "1060", "1140"}
    assert found["played"] == SEEDS
