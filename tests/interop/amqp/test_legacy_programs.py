"""Small programs of the kind that legacy applications are say beside Headgate what they say beside RabbitMQ."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.amqp import programs
from tests.support.amqp.programs import asking, consuming, failing, publishing, reconnecting, serializing
from tests.support.amqp.programs.stage import Program, Stage
from tests.support.amqp.rabbitmq import MISSING, RabbitMQ

pytestmark = pytest.mark.slow

ROOMS = (asking, consuming, failing, publishing, reconnecting, serializing)
PROGRAMS = [program for room in ROOMS for program in room.PROGRAMS]
TRANSCRIPTS = json.loads((Path(programs.__file__).parent / "transcripts.json").read_text())


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    if MISSING:
        pytest.skip(MISSING)
    broker = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))
    try:
        yield broker.start()
    finally:
        broker.close()


def transcript(program: Program, port: int) -> list[str]:
    """Returns what a program says beside the broker at a port."""
    stage = Stage(port)
    program(stage)
    return stage.transcript


def test_each_program_has_a_transcript():
    assert sorted(TRANSCRIPTS) == sorted(program.__name__ for program in PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_beside_headgate(shared_gateway: Any, program: Program):
    assert transcript(program, shared_gateway.port("amqp")) == TRANSCRIPTS[program.__name__]


@pytest.mark.nightly
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_beside_rabbitmq(rabbitmq: RabbitMQ, program: Program):
    assert transcript(program, rabbitmq.amqp_port) == TRANSCRIPTS[program.__name__]
