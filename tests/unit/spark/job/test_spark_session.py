"""Finding a Java, without starting one that is not there."""

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError

from spark.errors import BadOption, MissingJdk, SparkError
from spark.job import TelemetryOptions, query, session
from spark.job.session import build_session, find_java_home


def java(home: Path, version: str, modules: str | None = "java.base jdk.incubator.vector") -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    lines = [f'JAVA_VERSION="{version}"'] + ([f'MODULES="{modules}"'] if modules is not None else [])
    (home / "release").write_text("\n".join(lines) + "\n")
    return home


def test_java_home_comes_first_then_the_newest(tmp_path):
    jvms = tmp_path / "jvm"
    java(jvms / "jdk-17", "17.0.15")
    newest = java(jvms / "jdk-21", "21.0.1")
    java(jvms / "jdk-8", "1.8.0_402")
    mine = java(tmp_path / "mine", "17.0.1")
    assert find_java_home({"JAVA_HOME": str(mine)}, jvms) == mine
    assert find_java_home({}, jvms) == newest
    assert find_java_home({"JAVA_HOME": str(tmp_path / "gone")}, jvms) == newest


def test_java_on_the_path(tmp_path):
    home = java(tmp_path / "jdk", "17.0.9", modules=None)
    assert find_java_home({"PATH": str(home / "bin")}, tmp_path / "none") == home


def test_a_java_that_will_not_do_is_named_in_one_line(tmp_path):
    jvms = tmp_path / "jvm"
    java(jvms / "jre-21", "21.0.1", modules="java.base")
    java(jvms / "jdk-11", "11.0.2")
    with pytest.raises(MissingJdk) as caught:
        find_java_home({}, jvms)
    text = str(caught.value)
    assert "\n" not in text
    assert "install" in text
    assert "jdk-11 is 11" in text
    assert "jre-21 is 21 without jdk.incubator.vector" in text


def test_a_java_that_does_not_run_is_none(tmp_path):
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("junk")
    with pytest.raises(MissingJdk, match="there is none:"):
        find_java_home({"JAVA_HOME": str(home), "PATH": ""}, tmp_path / "none")


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("rules", Path("/nowhere/rules.toml"), "option rules cannot be /nowhere/rules.toml: No such file"),
        ("starting_offsets", "yesterday", "option starting_offsets cannot be yesterday: it must be earliest"),
        ("driver_memory", "much", "option driver_memory cannot be much: it must be a number and a unit"),
        ("driver_memory", "512", "it must be a number and a unit"),
        ("driver_memory", "500M", "option driver_memory cannot be 500M: it must be 512m at least"),
        ("master", "host:7077", "option master cannot be host:7077: it must be as spark://host:7077"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_written(tmp_path, monkeypatch, option, value, why):
    monkeypatch.setattr(query, "find_java_home", lambda: tmp_path)
    monkeypatch.setattr(query, "build_session", lambda *_, **__: pytest.fail("Spark is started for nothing"))
    with pytest.raises(BadOption, match=re.escape(why)):
        query.run_telemetry(TelemetryOptions(output=tmp_path / "out", **{option: value}), None)
    assert not (tmp_path / "out").exists()


def test_a_spark_that_does_not_start_is_a_sentence(tmp_path, monkeypatch):
    def start(_conf, _popen):
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    for name in ("JAVA_HOME", "SPARK_LOCAL_IP", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", session.REGISTERED):
        monkeypatch.setenv(name, "")  # as it was, when this ends
    monkeypatch.setattr(session, "find_java_home", lambda: tmp_path)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(session, "launch_gateway", start)
    with pytest.raises(SparkError, match=r"^Spark does not start .options master, memory.: .*JAVA_GATEWAY_EXITED"):
        build_session()
    with pytest.raises(BadOption, match="option memory cannot be 1x"):
        build_session(driver_memory="1x")
    with pytest.raises(BadOption, match="option master cannot be somewhere"):
        build_session(master="somewhere")
