"""The owners of security contexts, and the sender sequence numbers, of which none is used twice.

A context is a name that one process owns (`gateway.ownership.owners`), and in that process one socket uses it. Numbers
are reserved before they are used, many at a time (RFC 8613, B.1.1): after a crash those that were reserved are lost,
and none is used twice. The replay window is not stored: a process that opens a context that was used before has the
client prove that its request is new (B.1.2). Who has only seen a message that may be a replay takes a context from no
living process: it is given numbers to ask for that proof, and takes the context when it has it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from gateway.base.turns import Turns
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.domain.session_user import SessionUser
from gateway.oscore.contexts_file import FileContext, Provisioned
from gateway.ownership.owners import Owned, Owners, OwnershipLost, Taken
from gateway.port.oscore import ContextKeys, FindKeys, NextLostContexts, OpenContext, OpenedContext
from store.api.client import StoreClient
from store.base.errors import AppendOutcomeUnknown, RevisionConflict

PREFIX: Final = "oscore/"  # of the names that are owned, and of the keys with the next number
NUMBERS_MAX: Final = 1 << 16  # reserved at a time
NUMBER_MAX: Final = (1 << 40) - 1  # RFC 8613, 7.2.1
RELEASE_WAIT_S: Final = 2.0  # for a socket to take note that it has lost a context


class ContextKeeper:
    """The contexts that sockets of this process use. It belongs to the event loop."""

    def __init__(self, provisioned: Provisioned, store: StoreClient, owners: Owners) -> None:
        self.provisioned = provisioned
        self._store = store
        self._owners = owners
        self._turns = Turns()  # by name: one change at a time
        self._owned: dict[str, Owned] = {}
        self._users: dict[str, Any] = {}  # the socket that uses each
        self._lost: dict[Any, list[str]] = {}  # by socket, those that it has not been told of
        self._told: dict[Any, asyncio.Future[None]] = {}  # by socket that waits for the next
        self._stopping = False
        owners.serve(PREFIX, self)

    async def find_keys(self, request: FindKeys) -> ContextKeys:
        """Returns the keys of a context, which its present user goes on using. Raises `Refusal`."""
        return self._find(request.kid, request.id_context).keys()

    def _find(self, kid: bytes, id_context: bytes | None) -> FileContext:
        found = self.provisioned.find(kid, id_context)
        if found is None:
            raise Refusal(Cause.UNAUTHENTICATED, "no such security context")
        return found

    async def open(self, socket: Any, request: OpenContext, principal_of: Callable[[str], Principal]) -> OpenedContext:
        """Opens a context for a socket. Raises `Refusal`, `StoreError`."""
        found = self._find(request.kid, request.id_context)
        name = found.name()
        async with self._turns.at(name):
            taken = await self._take(socket, name, proven=request.proven)
            numbers = min(request.numbers, NUMBERS_MAX)
            if taken:  # a context with a reserved number was used
                numbers = max(numbers, 1)
            first, unused = await self._reserve(name, numbers)
            if taken is not None:
                if numbers:
                    await self._confirm(name)
                self._users[name] = socket
            return OpenedContext(
                name=name,
                keys=found.keys(),
                principal=principal_of(found.user),
                first=first,
                taken=bool(taken),
                unused=unused,
                elsewhere=taken is None,
            )

    async def _take(self, socket: Any, name: str, *, proven: bool) -> bool | None:
        """Gives a context to a socket; returns whether it had it not before. None: another one goes on using it."""
        user = self._users.get(name)
        if user is not None and user is not socket:
            if not proven and not user.gone:
                return None
            await self._take_from_socket(name)
        if name in self._owned:
            return user is not socket
        try:
            self._owned[name] = await self._owners.take(f"{PREFIX}{name}", wait=proven)
        except Taken:
            if proven:
                raise
            return None
        return True

    async def _reserve(self, name: str, count: int) -> tuple[int, bool]:
        """Returns the first of some numbers that no other process uses, and whether none was ever reserved."""
        key = f"{PREFIX}{name}"
        while True:
            entry = await self._store.keys.get(key)
            first, revision = (0, 0) if entry is None else (int(entry.value), entry.revision)
            if first + count > NUMBER_MAX:
                raise Refusal(Cause.CONFLICT, "the security context is used up: provision another one")
            if not count:
                return first, entry is None
            try:
                await self._store.keys.put(key, b"%d" % (first + count), expected_revision=revision)
            except (RevisionConflict, AppendOutcomeUnknown):
                continue  # another process has reserved some, or the written ones are not used
            return first, entry is None

    async def _confirm(self, name: str) -> None:
        """Makes sure that this process owns a context still. Raises `OwnershipLost`."""
        try:
            await self._owned[name].confirm()
        except OwnershipLost:
            self._owned.pop(name, None)
            self._lose(name)
            raise

    def stop(self) -> None:
        """Ends all waiting, as the gateway stops."""
        self._stopping = True
        for told in self._told.values():
            if not told.done():
                told.set_result(None)

    async def next_lost(self, socket: Any, request: NextLostContexts) -> Sequence[str]:
        """Waits for contexts that a socket has lost. Raises `Refusal` (UNAVAILABLE) where the gateway stops."""
        while not self._lost.get(socket):
            if self._stopping:
                raise Refusal(Cause.UNAVAILABLE, "the gateway stops")
            told = self._told.get(socket)
            if told is None or told.done():
                told = self._told[socket] = asyncio.get_running_loop().create_future()
            await asyncio.shield(told)
        return self._lost.pop(socket)

    def _lose(self, name: str) -> None:
        """Tells the socket that uses a context that it must not any more."""
        socket = self._users.pop(name, None)
        if socket is None or socket.gone:
            return
        self._lost.setdefault(socket, []).append(name)
        told = self._told.pop(socket, None)
        if told is not None and not told.done():
            told.set_result(None)

    async def _take_from_socket(self, name: str) -> None:
        """Returns when the socket that uses a context has taken note that it has lost it, or is too slow."""
        socket = self._users[name]
        self._lose(name)
        deadline = asyncio.get_running_loop().time() + RELEASE_WAIT_S
        while not socket.gone and asyncio.get_running_loop().time() < deadline:
            waiting = self._told.get(socket)
            if waiting is not None and not waiting.done() and not self._lost.get(socket):
                return
            await asyncio.sleep(0.002)

    async def on_release_requested(self, name: str, user: SessionUser | None) -> None:
        """See `owners.OwnershipListener`: another process has a request in this context."""
        context = name.removeprefix(PREFIX)
        async with self._turns.at(context):
            owned = self._owned.pop(context, None)
            if context in self._users:
                await self._take_from_socket(context)
            if owned is not None:
                await owned.release()

    async def on_owner_lost(self, name: str, take: Callable[[], Coroutine[Any, Any, Owned]]) -> None:
        """See `owners.OwnershipListener`: the next request in this context takes it."""
        await (await take()).release()

    async def on_fenced(self) -> None:
        """See `owners.OwnershipListener`: others may use this process's contexts."""
        self._owned.clear()
        for name in list(self._users):
            self._lose(name)
