"""The measurement of decoding still works on the code of today, for every format."""

import json
import sys

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from tests.bench.spark import spark_decode


def test_every_format_is_decoded_to_the_same_numbers():
    expected = list(spark_decode.flat(3).values())
    for name, one in spark_decode.FORMATS.items():
        rows = spark_decode.Decoder().read([spark_decode.messages_of(one, 4)[3]])
        assert rows.values == expected[: one.metrics], name


def test_figures_of_every_format_are_printed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["decoding", "--messages", "3", "--rounds", "2", "--seconds", "0.0001"])
    spark_decode.main()
    found = json.loads(capsys.readouterr().out)["samples_per_core_s"]
    assert list(found) == list(spark_decode.FORMATS)
    for one in found.values():
        assert one["decoded"] > 0 < one["as_column"]
    assert "parsed" not in found["plain"]
    assert found["cbor"]["parsed"] > 0
