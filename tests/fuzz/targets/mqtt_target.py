"""Fuzz targets of MQTT, and their loops: `python -m tests.fuzz.targets.mqtt_target --inputs 1000000 --seed 7`.

`decoder` takes one packet an input: parsed, and then equal to what its own encoding parses to; not all there; or
refused with a reason code. `connection` feeds a whole connection, from its CONNECT on, with a gateway behind it that
answers, refuses and delivers by chance; what it must keep to is in `FuzzedConnection`. Inputs are made in lots of
10,000, each from its own seed: a finding is found again by its lot alone: `--seed 7 --lot 123 --inputs 10000`.
"""

import sys
from functools import partial
from random import Random
from zlib import crc32

from adapters.mqtt.codec import decode, encode, read_fixed_header
from adapters.mqtt.codec.reason import ReasonCode
from gateway.domain.errors import ProtocolError
from tests.fuzz.targets import lots
from tests.fuzz.targets.lots import Found, Target, count, hex_of, single_inputs
from tests.fuzz.targets.mqtt_inputs import SHAPES, TRAFFIC, VERSIONS, hurt
from tests.fuzz.targets.mqtt_peer import FuzzedConnection

_CODES = frozenset(ReasonCode)
_SAID_AGAIN = 8  # every so many packets that parse are encoded and parsed again
_INPUTS_MAX = 64  # of one connection


def _draw_packet(random: Random) -> tuple[int, bytes]:
    """Returns a version, and bytes that may be a packet of it."""
    version = random.choice(VERSIONS)
    return version, hurt(SHAPES[version], random)


def _packet(given: tuple[int, bytes]) -> str:
    version, data = given
    try:
        frame = read_fixed_header(data, 0, minimal=version == 5)
        if frame is None or frame.end > len(data):
            return "not_all_there"
        packet = decode(frame.first, data[frame.start : frame.end], version)
    except ProtocolError as error:
        if error.code not in _CODES:
            raise AssertionError(f"{error.code:#x} is no reason code") from error
        return "refused"
    if not crc32(data) % _SAID_AGAIN:
        again = encode(packet, version)
        frame = read_fixed_header(again, 0, minimal=True)
        assert frame is not None
        assert decode(frame.first, again[frame.start :], version) == packet, packet
    return "parsed"


def connection(random: Random, inputs: int, tally: dict[str, int]) -> None:
    """Fuzzes whole connections. Raises `Found`."""
    said: list[bytes] = []
    done = connections = closed = 0
    peer: FuzzedConnection | None = None
    try:
        while done < inputs:
            version = VERSIONS[random.getrandbits(8) % 3]
            peer = FuzzedConnection(version, random, peer)
            said = []
            shapes = TRAFFIC[version]
            chance = random.getrandbits(8)
            if chance < 32:  # it never gets in, or only by luck
                said.append(hurt(SHAPES[version][:2] + SHAPES[version][-17:], random))
            else:
                said.append(peer.greeting())
            peer.feed(said[0])
            for _ in range(_INPUTS_MAX):
                done += 1
                if peer.closed:
                    break
                chance = random.getrandbits(16)
                if chance & 3:
                    data = b"".join(
                        [shapes[random.getrandbits(8) % len(shapes)].framed() for _ in range(1 + chance % 3)]
                    )
                    said.append(data)
                    peer.feed(data, cut=chance >> 4 & 0xFF if chance & 8 else 0)
                else:
                    said.append(hurt(SHAPES[version] if chance & 4 else shapes, random))
                    peer.judged(said[-1])
                peer.happen(chance >> 12)
            peer.end()
            connections, closed = connections + 1, closed + peer.closed
    except Exception as error:
        raise Found(" | ".join(one.hex(" ") for one in said)) from error
    count(tally, connections=connections, closed_by_us=closed, reads=done)


TARGETS: dict[str, Target] = {
    "decoder": single_inputs(
        _draw_packet, _packet, refusals=(), shown=lambda given: f"version {given[0]}: {hex_of(given[1])}"
    ),
    "connection": connection,
}

run = partial(lots.run, TARGETS)

if __name__ == "__main__":
    sys.exit(lots.main(TARGETS, __doc__, sys.argv[1:]))
