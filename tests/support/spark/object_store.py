"""An S3-compatible object store: moto's server, over real sockets."""

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 90
# As `moto.server` serves it, but for its search, at each request, for the service that is meant.
SERVER = """
import sys

from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

run_simple("127.0.0.1", int(sys.argv[1]), create_backend_app("s3"), threaded=True, request_handler=MotoRequestHandler)
"""


@contextmanager
def bucket(name: str, log: Path) -> Iterator[dict[str, str]]:
    """Serves an empty bucket, and yields the options of its store. Its own process, because delta-rs holds the
    interpreter.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with log.open("wb") as out:
        server = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], stdout=out, stderr=out)
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    try:
        while True:
            try:
                made = urllib.request.Request(f"{url}/{name}", method="PUT")
                urllib.request.urlopen(made, timeout=START_S).close()
                break
            except OSError:
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.1)
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
    finally:
        server.kill()
        server.wait()
