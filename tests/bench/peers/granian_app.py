"""The bare application on Granian, a server of HTTP/1.1 and HTTP/2 in Rust, with one worker on uvloop.

    python -m tests.bench.peers.granian_app [--host 127.0.0.1] [--port 8080]

The peer that HTTP/2 is held against: about the most that a Python program has from a server that is none itself. Ends
on SIGINT or SIGTERM.
"""

import argparse

from granian.constants import HTTPModes, Interfaces, Loops
from granian.server import Server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    arguments = parser.parse_args()
    server = Server(
        "tests.bench.peers.bare_app:take",
        address=arguments.host,
        port=arguments.port,
        interface=Interfaces.ASGINL,
        http=HTTPModes.auto,
        loop=Loops.uvloop,
        workers=1,
        websockets=False,
    )
    server.serve()


if __name__ == "__main__":
    main()
