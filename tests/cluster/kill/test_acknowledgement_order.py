"""Checks what the system does between a message and its acknowledgement: fdatasync of the log, on every protocol."""

import re
import shutil
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import pika
import pytest

STRACE = shutil.which("strace")
CALLS = "pwrite64,pwritev,pwritev2,fdatasync,write,writev,sendto,sendmsg"
TRACE_END_S = 10
_LINE = re.compile(r"(?P<thread>\d+) +(?P<text>.*)")
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(?P<text>.*)")
_ENDED = re.compile(r"\) += (?P<result>-?\d+)[^)]*$")


def _may_trace() -> bool:
    return STRACE is not None and subprocess.run([STRACE, "-o", "/dev/null", "true"], check=False).returncode == 0


pytestmark = [pytest.mark.slow, pytest.mark.skipif(not _may_trace(), reason="strace is not installed, or not allowed")]


class Call(NamedTuple):
    """A system call; `began` and `ended` are lines of the trace."""

    text: str
    began: int
    ended: int
    result: int


def hexadecimal(data: bytes) -> str:
    """Returns bytes as `strace -xx` writes them."""
    return "".join(f"\\x{byte:02x}" for byte in data)


def calls(trace: Path) -> list[Call]:
    """Returns the calls of a trace that have returned; a call that stands in two halves is put together."""
    found, begun = [], {}
    for number, line in enumerate(trace.read_text().splitlines()):
        match = _LINE.fullmatch(line)
        assert match is not None, line
        thread, text, began = match["thread"], match["text"], number
        if (resumed := _RESUMED.fullmatch(text)) is not None:
            before, began = begun.pop(thread)
            text = before + resumed["text"]
        if text.endswith("<unfinished ...>"):
            begun[thread] = text.removesuffix("<unfinished ...>"), began
        elif (ended := _ENDED.search(text)) is not None:
            found.append(Call(text, began, number, int(ended["result"])))
    return found


def mqtt(gateway, address, marker):
    with socket.create_connection(("127.0.0.1", gateway.port("mqtt")), timeout=60) as peer:
        peer.sendall(b"\x10\x0d\0\4MQTT\4\2\0\x3c\0\1o")
        assert peer.recv(4) == b"\x20\2\0\0"
        packet = struct.pack("!H", len(address)) + address.encode() + b"\x12\x34" + marker
        peer.sendall(bytes([0x32, len(packet)]) + packet)
        assert peer.recv(4) == b"\x40\2\x12\x34"
    return b"\x40\2\x12\x34"


def coap(gateway, address, marker):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.settimeout(10)
        peer.connect(("127.0.0.1", gateway.port("coap")))
        levels = [b"t", *address.encode().split(b"/")]
        options = bytes([0xB0 | len(levels[0])]) + levels[0] + b"".join(bytes([len(x)]) + x for x in levels[1:])
        peer.send(b"\x40\x02\x12\x34" + options + b"\xff" + marker)
        assert peer.recv(100) == b"\x60\x41\x12\x34"
    return b"\x60\x41\x12\x34"


def http(gateway, address, marker):
    assert httpx.post(f"{gateway.url}/topics/{address}", content=marker, timeout=60).status_code == 201
    return b"HTTP/1.1 201"


def amqp(gateway, address, marker):
    parameters = pika.ConnectionParameters("127.0.0.1", gateway.port("amqp"))
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", address.replace("/", "."), marker)
    return b"\1\0\1\0\0\0\x0d\0\x3c\0\x50"  # basic.ack on channel 1 (AMQP 0-9-1, 1.8.3.13)


def test_the_log_is_synced_between_a_frame_and_its_acknowledgement(new_gateway, tmp_path):
    trace = tmp_path / "trace"
    gateway = new_gateway()
    gateway.wrapper = (STRACE, "-D", "-f", "-yy", "-xx", "-s", "4096", "-o", str(trace), "-e", f"trace={CALLS}")
    gateway.start()
    log = hexadecimal(str(gateway.data_dir / "log").encode())
    publishers = {"mqtt": mqtt, "coap": coap, "http": http, "amqp": amqp}
    acknowledgements = {
        name: publish(gateway, f"order/{name}", f"of {name}".encode() * 4) for name, publish in publishers.items()
    }
    gateway.stop()
    deadline = time.monotonic() + TRACE_END_S
    while f"{gateway.process.pid} +++ exited" not in trace.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    found = calls(trace)
    of_log = [call for call in found if f"<{log}" in call.text]
    for name, acknowledgement in acknowledgements.items():
        marker = hexadecimal(f"of {name}".encode() * 4)
        written = [call for call in of_log if call.text.startswith("pwrite") and marker in call.text]
        assert written, f"{name}: the frame was not written"
        sent = [
            call
            for call in found
            if f"[127.0.0.1:{gateway.port(name)}" in call.text and hexadecimal(acknowledgement) in call.text
        ]
        assert len(sent) == 1, f"{name}: one acknowledgement, not {len(sent)}"
        synced = [
            call
            for call in of_log
            if call.text.startswith("fdatasync")
            and call.result == 0
            and call.began > written[-1].ended
            and call.ended < sent[0].began
        ]
        assert synced, f"{name}: acknowledged before the log was on disk"
