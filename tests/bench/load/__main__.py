"""Put one load on one server and print what was measured, as JSON: `python -m tests.bench.load '{"load": ...}'`.

Every load is bounded: by a count, by a time, and by how long it waits for a server that says nothing.
"""

import gc
import resource
import sys

import msgspec

from tests.bench.load.any import AnyLoad
from tests.bench.load.base import LoadError


def main() -> int:
    """Runs a load, and returns the exit status: 1 with a line on standard error when the server did not answer as
    expected.
    """
    load = msgspec.json.decode(sys.argv[1], type=AnyLoad)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.disable()  # no pauses of our own in the figures
    try:
        measured = load.run()
    except (LoadError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(msgspec.json.encode(measured).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
