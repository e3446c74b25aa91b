"""MQTT under chaos: connections cut inside packets and taken over, subscribers away, the gateway dead by kill -9.

At QoS 1 nothing is lost, at QoS 2 nothing is lost and nothing doubled, towards the log and towards subscribers, and
what a publisher sends to a topic arrives in its order. HEADGATE_CHAOS_S says for how many seconds things happen
(`make chaos`: 600), HEADGATE_CHAOS_SEED which; a failure names the seed.
"""

import os
import random

import pytest

from tests.support.mqtt.mqtt_chaos import ChaosRun, Cutter, in_the_log

SECONDS = float(os.environ.get("HEADGATE_CHAOS_S", "8"))
SEED = int(os.environ.get("HEADGATE_CHAOS_SEED", "1"))

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(300 + 3 * SECONDS)]


async def test_nothing_is_lost_and_nothing_doubled(new_gateway):
    gateway = new_gateway().start()
    async with Cutter(gateway.port("mqtt"), random.Random(SEED)) as relay:
        run = ChaosRun(gateway, relay, SEED)
        run.start()
        try:
            await run.hurt(SECONDS / 2)
            run.start_late()
            await run.hurt(SECONDS / 2)
            await run.heal()
        finally:
            await run.stop()
        print(run.report())
        run.check(in_the_log(gateway))
