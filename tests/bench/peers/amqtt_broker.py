"""The broker of amqtt, its plugins left out but the one that lets everybody in.

    python -m tests.bench.peers.amqtt_broker [--host 127.0.0.1] [--port 1883]

Ends on SIGINT or SIGTERM.
"""

import argparse
import asyncio
import logging
import signal

from amqtt.broker import Broker


async def serve(host: str, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"{host}:{port}", "max_connections": 50_000}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    print(f"listens on {host}:{port}", flush=True)
    await stop.wait()
    await broker.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(serve(arguments.host, arguments.port))


if __name__ == "__main__":
    main()
