"""The bare application on uvicorn, with httptools and uvloop.

    python -m tests.bench.peers.uvicorn_app [--host 127.0.0.1] [--port 8080]

The peer that HTTP/1.1 clients with one request under way are held against: about what an operator would write by hand.
Ends on SIGINT or SIGTERM.
"""

import argparse

import uvicorn

from tests.bench.peers.bare_app import take


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
