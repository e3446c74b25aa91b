"""The addresses that sinks' names lead to, looked up in threads of their own.

A name whose servers do not answer keeps a thread for as long as the system asks for it: 10 s and more. The threads of
the event loop's executor are few, and files and others' names wait for them, too. These are threads that nothing else
waits for, and of each name there is one look-up at a time, so that one name takes one thread. Names that were found the
last time have threads of their own, so that many names that nobody answers for do not hold them up.
"""

import asyncio
import contextlib
import socket
import threading
from typing import Final

THREADS_MAX: Final = 64  # names that are looked up at a time, of either kind; others wait
FOUND_MAX: Final = 10_000  # names that are known to have been found

_Found = list[str]


class NameLookups:
    """The look-ups in progress. It belongs to the event loop."""

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._threads = asyncio.Semaphore(threads_max)
        self._threads_of_found = asyncio.Semaphore(threads_max)
        self._found: dict[str, None] = {}  # the last time; the one found first is first
        self._asked: dict[str, asyncio.Task[_Found]] = {}

    async def addresses(self, host: str) -> _Found:
        """Returns the addresses of a host, none twice. Raises OSError and UnicodeError as `socket.getaddrinfo` does."""
        asked = self._asked.get(host)
        if asked is None:
            asked = self._asked[host] = asyncio.ensure_future(self._look_up(host))
            asked.add_done_callback(lambda ended: self._ended(host, ended))
        return await asyncio.shield(asked)  # a caller that gives up leaves it to others

    def _ended(self, host: str, ended: "asyncio.Task[_Found]") -> None:
        del self._asked[host]
        self._found.pop(host, None)
        if not ended.cancelled() and ended.exception() is None:  # the caller may not have asked for it
            self._found[host] = None
            if len(self._found) > FOUND_MAX:
                del self._found[next(iter(self._found))]

    async def _look_up(self, host: str) -> _Found:
        async with self._threads_of_found if host in self._found else self._threads:
            loop = asyncio.get_running_loop()
            found: asyncio.Future[_Found] = loop.create_future()

            def run() -> None:
                try:
                    answer: _Found | Exception = _addresses(host)
                except Exception as error:  # noqa: BLE001 - the waiting caller is to have it, whatever it is
                    answer = error
                with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                    loop.call_soon_threadsafe(_tell, found, answer)

            # A daemon, as a process that ends does not wait for it.
            threading.Thread(target=run, name=f"looks up {host}", daemon=True).start()
            return await found


def _addresses(host: str) -> _Found:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


def _tell(found: "asyncio.Future[_Found]", answer: _Found | Exception) -> None:
    if found.done():
        return
    if isinstance(answer, Exception):
        found.set_exception(answer)
    else:
        found.set_result(answer)
