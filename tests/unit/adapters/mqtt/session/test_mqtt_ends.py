"""A connection that has ended leaves nothing that only the garbage collector could find."""

import gc
import weakref

import pytest

from adapters.mqtt.codec.packets import Publish, Subscribe, SubscriptionRequest
from tests.support.mqtt.mqtt_driver import Driver


class Watched(Driver):
    """Its adapter can be watched."""

    def __init__(self, version):
        super().__init__(version)
        inner = type(self.adapter)
        watched = type("Watched", (inner,), {"__slots__": ("__weakref__",)})
        self.adapter = watched(self.adapter.info, self.options, self.adapter._random)


@pytest.mark.slow
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("clean", [True, False])
def test_a_connection_that_has_ended_is_gone_at_once(version, clean):
    driver = Watched(version)
    driver.connect(clean=clean)
    driver.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="a/#", qos=2),)))
    driver.send(Publish(topic="a", qos=2, packet_id=2), Publish(topic="a", qos=1, packet_id=3))
    driver.store()
    adapter = weakref.ref(driver.adapter)
    gc.collect()
    gc.disable()
    try:
        driver.lose()
        del driver
        assert adapter() is None
    finally:
        gc.enable()
