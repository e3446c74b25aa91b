"""The comparison of codecs still works on the code of today, and our own still refuse what they should."""

import importlib

import pytest

from tests.bench.codecs.__main__ import SUBJECTS, takes


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_comparison_runs(name):
    subject = importlib.import_module(f"tests.bench.codecs.{name}").subject()
    for work in subject.works:
        assert next(iter(work.contenders)) == "ours"
        for run in work.contenders.values():
            run()
    taken = [title for title, given in subject.malformed.items() if takes(subject.readers["ours"], given)]
    assert not taken
