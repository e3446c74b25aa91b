"""Messages as CloudEvents in one request to the gateway's HTTP port."""

from collections.abc import Callable, Sequence

import msgspec

from spark.errors import BadOption
from spark.generator.fleet import Reading
from spark.generator.labels import instant
from spark.publishing.client import GatewayClient
from spark.publishing.options import fields_of

SOURCE, TYPE = "//headgate/generator", "headgate.reading.v1"


def address_of(template: str) -> Callable[[Reading], str]:
    """Returns the address of a message by a template that names {device} and nothing else. Raises `BadOption`."""
    if set(fields_of(template)) != {"device"} or any(one in template for one in "+#"):
        raise BadOption("address", f"cannot be {template!r}: it has to name {{device}}, and no other field")
    return lambda one: template.format(device=one.device)


def id_of(run: str, one: Reading) -> str:
    """Returns the id of a message in a run."""
    return f"{run}-{one.device}-{one.number}"


class EventsSender:
    """Sends messages over HTTP, each request until it is answered; the gateway stores it once."""

    def __init__(self, client: GatewayClient, run: str, address: Callable[[Reading], str]) -> None:
        self._client, self._run, self._address, self._requests = client, run, address, 0

    def send(self, some: Sequence[Reading]) -> None:
        """Sends messages in one request. Raises `GatewayUnreachable` and `PublishRefused`."""
        body = msgspec.json.encode([self._event(one) for one in some])
        key = f'"{self._run}-{self._requests}"'
        headers = {"content-type": "application/cloudevents-batch+json", "idempotency-key": key}
        self._client.ask("POST", "/events", content=body, headers=headers)
        self._requests += 1

    def _event(self, one: Reading) -> dict[str, object]:
        return {
            "specversion": "1.0",
            "id": id_of(self._run, one),
            "source": SOURCE,
            "type": TYPE,
            "subject": self._address(one),
            "time": instant(one.time_ms),
            "datacontenttype": "application/json",
            "partitionkey": one.device,
            "data": one.values,
        }
