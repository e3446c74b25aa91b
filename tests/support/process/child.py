"""Coroutines that run in a process of their own."""

import asyncio
import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

PATIENCE_S = 120


def in_a_child(work: Callable[..., Coroutine[Any, Any, None]], *given: Any) -> None:
    """Runs a coroutine function of a test's module to its end, with arguments that can be pickled.

    gRPC hands what is left of a loop that was closed to the next loop of its process, where it fails some other test.
    """
    subprocess.run(
        [sys.executable, __file__, work.__module__, work.__name__],
        input=pickle.dumps(given),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=PATIENCE_S,
        check=True,
    )


if __name__ == "__main__":
    asyncio.run(getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(*pickle.load(sys.stdin.buffer)))
