"""A bare aiocoap server: every POST is answered 2.01 and every PUT 2.04 at once, nothing is kept.

    python tests/bench/peers/aiocoap_server.py [--host 127.0.0.1] [--port 5683]

The peer that the CoAP benchmarks are held against. Prints one line when it listens; ends on SIGINT or SIGTERM.
"""

import argparse
import asyncio
import signal

from aiocoap import Context, Message
from aiocoap.numbers.codes import CHANGED, CREATED, METHOD_NOT_ALLOWED, POST, PUT
from aiocoap.resource import Resource

RESPONSES = {POST: CREATED, PUT: CHANGED}


class Sink(Resource):
    """Takes everything. Where a site is expected it stands at every path."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    async def needs_blockwise_assembly(self, request: Message) -> bool:
        return False

    async def render(self, request: Message) -> Message:
        self.requests += 1
        return Message(code=RESPONSES.get(request.code, METHOD_NOT_ALLOWED))


async def serve(host: str, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    sink = Sink()
    context = await Context.create_server_context(sink, bind=(host, port))
    print(f"aiocoap listens on {host}:{port}", flush=True)
    await stop.wait()
    await context.shutdown()
    print(f"{sink.requests} requests", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5683)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.host, arguments.port))


if __name__ == "__main__":
    main()
