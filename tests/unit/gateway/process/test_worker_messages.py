"""Orders of workers: what is sent arrives as it was, and nothing else is taken."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gateway.config.config import adapter_factories, load
from gateway.process import worker_messages
from gateway.process.worker_messages import (
    LENGTH,
    MESSAGE_BYTES_MAX,
    WorkerMessageError,
    WorkerOrders,
    check_length,
    decode,
    encode,
)
from gateway.security.passwords import hash_password


def orders(pages="/run/worker-1.sock", **tables):
    return WorkerOrders(config=load(environ={}, overrides=tables), pages=Path(pages))


def body(told):
    data = encode(told)
    assert check_length(data[: LENGTH.size]) == len(data) - LENGTH.size
    return data[LENGTH.size :]


def test_the_example_configuration_arrives_as_it_was():
    example = Path(__file__).parents[4] / "headgate.example.toml"
    told = WorkerOrders(config=load(example, {}), pages=Path("pages"))
    assert decode(body(told)) == told


def test_all_kinds_of_values_arrive_as_they_were(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("pässword\n")
    told = orders(
        os.fsdecode(b"/run/\xff.sock"),
        port_offset=1000,
        store={"data_dir": os.fsdecode(b"/data/\xfe")},
        auth={"users": {"ada": {"password_file": str(secret)}, "bob": {"password_hash": hash_password(b"x")}}},
        access={
            "default": "deny",
            "rules": [{"effect": "allow", "actions": ["publish"], "filters": ["a/#"], "protocols": ["mqtt"]}],
        },
        routes=[{"pattern": "plant/+/#", "topic": "plant"}],
        limits={"bytes_per_s": 1e9},
        listeners={"mqtt": {"enabled": False}},
        adapters={"http": {"allowed_hosts": ["example.org"]}, "mqtt": {"sparkplug": True}},
    )
    found = decode(body(told))
    assert found == told
    assert [type(one) for one in found.config.adapters.values()] == [
        factory.options for factory in adapter_factories().values()
    ]
    assert found.config.auth.users["ada"].password.reveal() == "pässword"
    assert "pässword" not in repr(found)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x93" * 100_000,
        msgspec.msgpack.encode({}),
        msgspec.msgpack.encode({"config": {}, "pages": "text", "parent": 1}),
        msgspec.msgpack.encode({"config": {}, "pages": b"p", "parent": 0}),
        msgspec.msgpack.encode({"config": {"port_offset": -1}, "pages": b"p", "parent": 1}),
        msgspec.msgpack.encode({"config": {}, "pages": b"p", "parent": 1, "more": 1}),
        msgspec.msgpack.encode({"config": {"adapters": {"gopher": {}}}, "pages": b"p", "parent": 1}),
        msgspec.msgpack.encode({"config": {"adapters": {"mqtt": 3}}, "pages": b"p", "parent": 1}),
        msgspec.msgpack.encode({"config": {"auth": {"users": {"a": {"password": b"x"}}}}, "pages": b"p", "parent": 1}),
    ],
)
def test_bytes_that_are_no_orders_are_refused(data):
    with pytest.raises(WorkerMessageError):
        decode(data)


def test_orders_are_cut_nowhere():
    data = body(orders())
    for end in range(0, len(data), 97):
        with pytest.raises(WorkerMessageError):
            decode(data[:end])


def test_a_length_beyond_the_limit_is_refused_before_anything_is_read():
    assert check_length(struct.pack("!I", MESSAGE_BYTES_MAX)) == MESSAGE_BYTES_MAX
    with pytest.raises(WorkerMessageError, match="workers take"):
        check_length(struct.pack("!I", MESSAGE_BYTES_MAX + 1))


def test_a_configuration_that_cannot_be_told_is_said(monkeypatch):
    told = orders()
    with pytest.raises(WorkerMessageError, match="cannot be sent"):
        encode(msgspec.structs.replace(told, config=msgspec.structs.replace(told.config, adapters={"x": object()})))
    monkeypatch.setattr(worker_messages, "MESSAGE_BYTES_MAX", 100)
    with pytest.raises(WorkerMessageError, match="without --workers"):
        encode(told)


@pytest.mark.parametrize("said", [b"", b"hello, world", struct.pack("!I", 3) + b"\x80\x04N"])
def test_a_worker_that_is_started_by_hand_says_who_starts_it(said):
    ended = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "worker"], input=said, capture_output=True, timeout=60, check=False
    )
    assert ended.returncode != 0
    assert b"a worker is started by headgate serve --workers" in ended.stderr
    assert b"Traceback" not in ended.stderr
