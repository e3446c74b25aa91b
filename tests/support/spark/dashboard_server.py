"""The dashboard's HTTP server in a thread of a test."""

import threading
from contextlib import contextmanager

from waitress.wasyncore import close_all


@contextmanager
def in_a_thread(server):
    """Runs a server of waitress, and ends it.

    Its files are closed when no thread of it runs: one that answers a request wakes the server by a file, whose number
    would be another file's by then.
    """
    thread = threading.Thread(target=server.run)
    thread.start()
    left = {}

    def leave():
        left.update(server._map)
        server._map.clear()

    try:
        yield
    finally:
        server.trigger.pull_trigger(leave)
        thread.join()
        server.task_dispatcher.shutdown()
        close_all(left, ignore_all=True)
