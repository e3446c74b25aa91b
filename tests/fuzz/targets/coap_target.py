"""Fuzz targets of CoAP, and their loops: `python -m tests.fuzz.targets.coap_target --inputs 1000000 --seed 7`.

`datagram`, `frame` and `option` give the decoders of RFC 7252, 8323 and 8613 one input each: what is read is written
again and is the same, or it is refused. `endpoint` and `stream` feed a whole UDP endpoint and whole TCP connections,
with a gateway behind them that answers, refuses and delivers by chance: what they say has to be CoAP. A finding is
found again by its lot: `--seed 7 --lot 123 --inputs 10000`.
"""

import sys
from functools import partial
from random import Random
from typing import Any

from adapters.coap.codec.registry import ACK, BLOCK1, BLOCK2, GET, NON, OBSERVE, RST
from adapters.coap.codec.wire import MessageFormatError, Packet, decode, encode, encode_options, read_options
from adapters.coap.oscore.option import CoseError, Fields, decode_option, has_oscore
from adapters.coap.stream.frames import FrameError, encode_frame, read_head
from adapters.coap.stream.signals import ABORT, CSM, PING, PONG, RELEASE
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Outcome, Publish
from store.api.message import Message
from tests.fuzz.targets import lots
from tests.fuzz.targets.lots import Found, Target, count, drawn, single_inputs
from tests.support.coap.coap_driver import Driver, request
from tests.support.coap.coap_streams import CoapStreamPeer
from tests.support.coap.coap_streams import request as frame_of

EVENT = b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":1}'
DATAGRAMS = [
    request("t/a/b", payload=b"body", content_format=50, query=("qos=1", "expiry=5", "x=y", "corr=eA")),
    request("t/a/b", type=NON, token=b"12345678", payload=b"\xff\xff"),
    request("t/a", options=((BLOCK1, b"\x0e"), (60, b"\x08\x00"), (292, b"tag")), payload=bytes(1024)),
    request("t/a", options=((BLOCK1, b"\x16"),), payload=b"end"),
    request("t/a", content_format=65_011, payload=EVENT),
    request("t/a", query=("ct=application/cloudevents+json", "delay=5", "retain=true"), payload=EVENT),
    request("t/a", GET, options=((BLOCK2, b"\x10"), (17, b"\x32"), (4, b"etag"), (16, b"\x05"), (258, b"\x1a"))),
    request("t/a", 3, options=((5, b""),), payload=b"put"),
    request("t/a", 4, options=((1, b"12345678"), (252, b"echo"))),
    request("t", 5, options=((OBSERVE, b""),), payload=b"a/+/#", content_format=0, query=("limit=5", "after=a")),
    request(".well-known/core", GET, query=("href=/t/%41*", "rt=core")),
    request("a", GET, options=((OBSERVE, b""),), query=("each=true",)),
    request("a", GET, mid=2, options=((OBSERVE, b"\x01"),)),
    request("t/%2B", GET, token=b"", options=((OBSERVE, b"\x00\x00"),)),
    encode(Packet(type=2, code=0, mid=1)),
    encode(Packet(type=3, code=0, mid=2)),
    encode(Packet(type=0, code=0, mid=3)),
    encode(Packet(type=0, code=69, mid=4, token=b"t", payload=b"an answer")),
]
OSCORE_DATAGRAM = request("a", options=((9, b"\x19\x05\x01a\x02"),), payload=b"x" * 20)
FRAMES = [
    frame_of("t/a/b", payload=b"body"),
    frame_of("t/a", GET, options=((OBSERVE, b""),)),
    frame_of("t/a", options=((BLOCK1, b"\x0f"),), payload=bytes(1024)),
    frame_of("t/a", payload=bytes(300)),
    frame_of("t", 5, options=((12, b"\x00"),), payload=b"#"),
    encode_frame(CSM, rest=encode_options([(2, b"\x10\x00"), (4, b"")])),
    encode_frame(PING, b"p", encode_options([(2, b"")])),
    encode_frame(PONG, b"p"),
    encode_frame(0, b""),
    encode_frame(69, b"tk", b"\xffanswer"),
]
LAST_FRAMES = [encode_frame(RELEASE, b"", encode_options([(4, b"\x05")])), encode_frame(ABORT, b"", b"\xffwhy")]
OPTIONS = [
    Fields(b"\x05", b"ctx", b"\x02").encode(),
    Fields(b"\x00\x01\x02\x03\x04", None, b"").encode(),
    Fields(None, b"", b"kid").encode(),
    b"",
    b"\x09",
]
LIMITS: dict[str, Any] = {
    "dedup_peer_max": 50,
    "dedup_total_max": 80,
    "peers_max": 3,
    "requests_outstanding_max": 5,
    "observers_max": 2,
    "block_transfers_max": 3,
    "block_bytes_max": 4_096,
    "max_body_bytes": 1_500,
}
_CAUSES = list(Cause)
_READS_MAX = 64  # of one endpoint or connection
hurt = partial(lots.hurt, telling=b"\x00\x01\x0d\x0e\x0f\x40\x60\xb0\xd0\xe0\xf0\xff*+#/")


def _datagram(data: bytes) -> str:
    packet = decode(data)
    assert decode(encode(packet)) == packet, packet
    has = any(number == 9 for number, _ in packet.options)
    assert not has or has_oscore(data) or any(number < 9 for number, _ in packet.options), packet
    return "parsed"


def _frame(data: bytes) -> str:
    head = read_head(data, 0)
    if head is None or head.end > len(data):
        return "not_all_there"
    token, rest = data[head.token_at : head.options_at], data[head.options_at : head.end]
    assert encode_frame(head.code, token, rest) == data[: head.end]
    read_options(data[: head.end], head.options_at)
    return "parsed"


def _option(data: bytes) -> str:
    fields = decode_option(data)
    assert decode_option(fields.encode()) == fields, fields
    return "parsed"


def _outcome(random: Random) -> Outcome | None:
    """Returns an outcome by chance; None: a good one."""
    return None if random.getrandbits(3) else Outcome(error=Refusal(random.choice(_CAUSES), "by chance"))


def endpoint(random: Random, inputs: int, tally: dict[str, int]) -> None:
    """Fuzzes whole UDP endpoints. Raises `Found`."""
    said: list[bytes] = []
    done = endpoints = answers = 0
    try:
        while done < inputs:
            last = Message("a", bytes(random.choice((1, 1_300))), id="1")
            driver = Driver(LIMITS if random.getrandbits(1) else {}, last=last, listed=["a", "b/ü"])
            waiting: list[Any] = []
            said, endpoints = [], endpoints + 1
            for _ in range(min(_READS_MAX, inputs - done)):
                done += 1
                data = DATAGRAMS[random.getrandbits(16) % len(DATAGRAMS)]
                data = hurt(data, random) if random.getrandbits(2) else data[:2] + random.randbytes(2) + data[4:]
                said.append(data)
                waiting += driver.receive(data, peer=(f"host{random.getrandbits(2)}", 1))
                if random.getrandbits(1):
                    driver.complete(waiting, _outcome(random))
                    waiting = []
                if not random.getrandbits(4):
                    driver.now_ms += random.getrandbits(14)
                    waiting += driver.endpoint.tick(now_ms=driver.now_ms)
                if driver.subscriptions and not random.getrandbits(2):
                    told = Message("a", bytes(random.getrandbits(5)), id=str(done))
                    sent = driver.deliver(told, sub=random.choice(list(driver.subscriptions)))
                    answers += len(sent)
                    for packet in sent:
                        reply = encode(Packet(type=random.choice((ACK, RST)), code=0, mid=packet.mid))
                        driver.receive(reply, peer=(f"host{random.getrandbits(2)}", 1))
                answers += len(driver.sent())
            driver.complete(waiting)
            driver.sent()
            assert driver.endpoint.outstanding == 0
    except Exception as error:
        raise Found(" | ".join(one.hex(" ") for one in said)) from error
    count(tally, endpoints=endpoints, messages_sent=answers)


class FuzzedStream(CoapStreamPeer):
    """A connection whose gateway answers by chance, and late."""

    def __init__(self, random: Random) -> None:
        self.random = random
        super().__init__(opened=bool(random.getrandbits(3)), **(LIMITS if random.getrandbits(1) else {}))
        self.holds = True
        self.last = Message("a/b", bytes(random.choice((1, 3_000))), id="1")

    def answer(self) -> list[Any]:
        """Answers what waits for it."""
        held, self.held = self.held, []
        for effect in held:
            good = Outcome() if isinstance(effect, Publish) else Outcome(value=self.last)
            self.complete(effect, _outcome(self.random) or good)
        return self.sent()


def stream(random: Random, inputs: int, tally: dict[str, int]) -> None:
    """Fuzzes whole TCP connections. Raises `Found`."""
    said: list[bytes] = []
    done = connections = closed = 0
    try:
        while done < inputs:
            peer = FuzzedStream(random)
            said, connections = [], connections + 1
            for _ in range(min(_READS_MAX, inputs - done)):
                done += 1
                if peer.closed is not None:
                    break
                data = b"".join(random.choices(FRAMES, k=1 + random.getrandbits(1)))
                if not random.getrandbits(2):
                    data = hurt(data, random)
                elif not random.getrandbits(6):
                    data = random.choice(LAST_FRAMES)
                said.append(data)
                cut = random.getrandbits(10) % (len(data) + 1)
                peer.send(data[:cut], data[cut:])
                if random.getrandbits(1):
                    peer.answer()
                if peer.subscriptions and not random.getrandbits(3):
                    peer.deliver(Message("a/b", bytes(random.getrandbits(5)), id="2"))
                    peer.sent()
                if not random.getrandbits(5):
                    peer.wait(random.getrandbits(17))
            closed += peer.closed is not None
            peer.connection.lost(now_ms=peer.now_ms)
    except Exception as error:
        raise Found(" | ".join(one.hex(" ") for one in said)) from error
    count(tally, connections=connections, closed_by_us=closed)


TARGETS: dict[str, Target] = {
    "datagram": single_inputs(drawn([*DATAGRAMS, OSCORE_DATAGRAM], hurt), _datagram, refusals=MessageFormatError),
    "frame": single_inputs(drawn(FRAMES + LAST_FRAMES, hurt), _frame, refusals=(FrameError, MessageFormatError)),
    "option": single_inputs(drawn(OPTIONS, hurt), _option, refusals=CoseError),
    "endpoint": endpoint,
    "stream": stream,
}

run = partial(lots.run, TARGETS)

if __name__ == "__main__":
    sys.exit(lots.main(TARGETS, __doc__, sys.argv[1:]))
