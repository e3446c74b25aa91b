"""A bare application on uvicorn, with httptools and uvloop: reads a request's body, answers 204, keeps nothing.

    python -m tests.bench.peers.uvicorn_app [--host 127.0.0.1] [--port 8080]

The peer that HTTP/1.1 clients with one request under way are held against: about what an operator would write by hand.
Ends on SIGINT or SIGTERM.
"""

import argparse
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

START = {"type": "http.response.start", "status": 204, "headers": []}
BODY = {"type": "http.response.body"}


async def take(
    _scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Reads the body and answers."""
    while (await receive()).get("more_body"):
        pass
    await send(START)
    await send(BODY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    arguments = parser.parse_args()
    uvicorn.run(
        take,
        host=arguments.host,
        port=arguments.port,
        http="httptools",
        loop="uvloop",
        lifespan="off",
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main()
