"""A whole gateway in this process that speaks CoAP alone."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from adapters.coap import FACTORY
from gateway.config.config import load
from gateway.process.app import Gateway
from gateway.process.backend import local_backend


@asynccontextmanager
async def coap_gateway(directory: Path, scheme: str, sections: Mapping[str, Any]) -> AsyncIterator[str]:
    """Yields the URI of the first listener of a gateway, whose configuration has these sections."""
    store = {"data_dir": str(directory / "data")}
    overrides = {"store": store, "rpc": {"enabled": False}, "admin": {"port": 0}, **sections}
    config = load(None, {}, overrides, factories={"coap": FACTORY})
    async with local_backend(config) as backend, asyncio.TaskGroup() as tasks:
        gateway = Gateway(config, backend, tasks)
        await gateway.start()
        try:
            yield f"{scheme}://127.0.0.1:{gateway.listening[0].port}"
        finally:
            await gateway.stop()
            await gateway.stop_admin()
            gateway.hub.cancel_tasks()
