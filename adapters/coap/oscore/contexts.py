"""The security contexts that one socket uses: opened at the gateway, checked while they are in use, and given up."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from adapters.coap.oscore.association import Association
from adapters.coap.oscore.context import SecurityContext
from gateway.domain.errors import Cause
from gateway.port.adapter import Call, Effect, Outcome, Peer, Random, Token
from gateway.port.oscore import ContextKeys, FindKeys, NextLostContexts, OpenContext, OpenedContext

NUMBERS_COUNT = 1_024  # sender sequence numbers reserved at a time
CHECK_MS = 10_000  # how long a context counts as provisioned
PARKED_DATAGRAMS_MAX = 256  # that wait for their context; more are dropped, and sent again
CONTEXTS_COUNT_MAX = 100_000  # in use by one socket; the one that was used longest ago is given up
ECHO_BITS = 64

Kid: TypeAlias = tuple[bytes, bytes | None]
Parked: TypeAlias = list[tuple[bytes, Peer]]


@dataclass(slots=True)
class HeldContext:
    """A context in use; `opened` and `context` are None until the gateway has answered."""

    kid: Kid
    opened: OpenedContext | None = None
    context: SecurityContext | None = None
    asked: Token | None = None  # the question in flight
    numbers: int = 0  # that it asks for
    checked_ms: int = 0
    echo: bytes = b""  # value that proves a request to be fresh after the replay window is lost
    parked: Parked = field(default_factory=list)
    peers: dict[Peer, Association] = field(default_factory=dict)  # by address, in the order of their last messages

    @property
    def elsewhere(self) -> bool:
        """Returns whether another socket uses it, so that this one may ask for a proof alone."""
        return self.opened is not None and self.opened.elsewhere


class Contexts:
    """Contexts by the kid and kid context of their messages. `effects` holds the effects for the gateway.

    A context is opened for a message that its keys have protected, as a kid can be guessed. It is taken from another
    socket for a message that has proved by an Echo that it is no replay, as a message can be captured.
    """

    def __init__(
        self,
        *,
        new_token: Callable[[], Token],
        forget_peers: Callable[[HeldContext], None],
        is_genuine: Callable[[SecurityContext, bytes], bool],
        forged: Callable[[bytes, Peer, int], None],
        random: Random,
    ) -> None:
        """Begins without contexts; tells `forget_peers` of one that is given up, `forged` of forged messages."""
        self._new_token = new_token
        self._forget_peers = forget_peers
        self._is_genuine = is_genuine
        self._forged = forged
        self._random = random
        self._held: dict[Kid, HeldContext] = {}  # the one used last at the end
        self._asked: dict[Token, HeldContext] = {}
        self._watching: Token | None = None  # the call for contexts that are lost
        self._parked_count = 0  # <= PARKED_DATAGRAMS_MAX
        self.effects: list[Effect] = []

    def __len__(self) -> int:
        return len(self._held)

    def find(self, kid: Kid, data: bytes, peer: Peer, now_ms: int) -> HeldContext | None:
        """Returns a context for a message; None where the message waits, or is dropped because too many wait."""
        held = self._held.pop(kid, None)
        if held is None:
            if self._parked_count >= PARKED_DATAGRAMS_MAX:
                return None
            while len(self._held) >= CONTEXTS_COUNT_MAX:
                self.drop(next(iter(self._held.values())))
            held = HeldContext(kid)
            held.asked = self._new_token()
            self._asked[held.asked] = held
            self.effects.append(Call(request=FindKeys(kid=kid[0], id_context=kid[1]), token=held.asked))
        self._held[kid] = held
        if held.context is not None:
            self.check(held, now_ms)
            return held
        if self._parked_count < PARKED_DATAGRAMS_MAX:
            self._parked_count += 1
            held.parked.append((data, peer))
        return None

    def take(self, held: HeldContext, data: bytes, peer: Peer) -> None:
        """Takes a context from the socket that uses it, for a message with the Echo asked for, which waits for it."""
        if self._parked_count < PARKED_DATAGRAMS_MAX:
            self._parked_count += 1
            held.parked.append((data, peer))
            self._ask(held, NUMBERS_COUNT, proven=True)

    def check(self, held: HeldContext, now_ms: int) -> None:
        """Asks for a context in use again where that is due, or for more sequence numbers."""
        assert held.context is not None
        low = held.context.numbers_left < NUMBERS_COUNT // 2
        if low or now_ms - held.checked_ms >= CHECK_MS:
            self._ask(held, NUMBERS_COUNT if low else 0)

    def _ask(self, held: HeldContext, numbers: int, *, proven: bool = False) -> None:
        if held.asked is not None:
            return
        if self._watching is None:
            self._watch()
        held.asked, held.numbers = self._new_token(), numbers
        self._asked[held.asked] = held
        request = OpenContext(kid=held.kid[0], id_context=held.kid[1], numbers=numbers, proven=proven)
        self.effects.append(Call(request=request, token=held.asked))

    def completed(self, token: Token, outcome: Outcome, now_ms: int) -> Parked | None:
        """Takes the outcome of a call; returns the messages that have waited for it. None: it is another's call."""
        held = self._asked.pop(token, None)
        if held is not None:
            if isinstance(outcome.value, ContextKeys):
                self._found(held, outcome.value, now_ms)
                return []
            return self._opened(held, outcome, now_ms)
        if token != self._watching:
            return None
        self._watching = None
        self._lost(outcome)
        return []

    def _found(self, held: HeldContext, keys: ContextKeys, now_ms: int) -> None:
        """Opens a context whose keys are known by now, if one of the messages that wait is genuine."""
        held.asked = None
        context = SecurityContext(keys)
        parked, held.parked = held.parked, []
        for data, peer in parked:
            if self._is_genuine(context, data):
                held.parked.append((data, peer))
            else:
                self._parked_count -= 1
                self._forged(data, peer, now_ms)
        if held.parked:
            self._ask(held, NUMBERS_COUNT)
        else:
            self.drop(held)

    def _opened(self, held: HeldContext, outcome: Outcome, now_ms: int) -> Parked:
        """Takes the gateway's word on a context."""
        held.asked = None
        parked, held.parked = held.parked, []
        self._parked_count -= len(parked)
        if outcome.error is not None:
            if outcome.error.cause is Cause.UNAUTHENTICATED or held.context is None:
                self.drop(held)
            elif held.elsewhere:
                held.echo = self._new_echo()  # it has served
            return parked
        opened: OpenedContext = outcome.value
        before = held.opened
        if before is not None and _told_apart(before) != _told_apart(opened):
            self._forget_peers(held)
            held.context, held.echo = None, b""
        if held.context is None:
            held.context = SecurityContext(opened.keys)
            if opened.unused and not opened.elsewhere:
                held.context.begin_unused()
        elif opened.taken:  # another process had it meanwhile
            held.context.renounce()
        if not held.context.knows_requests:
            held.echo = held.echo or self._new_echo()
        held.context.reserve(opened.first, held.numbers)
        held.opened, held.checked_ms = opened, now_ms
        return parked

    def _new_echo(self) -> bytes:
        return self._random.getrandbits(ECHO_BITS).to_bytes(ECHO_BITS // 8, "big")

    def _lost(self, outcome: Outcome) -> None:
        """Gives up the contexts that another socket uses from now on; the next call says that it is done.

        Where it is not known which, all are given up. When the gateway stops none is: it still answers requests.
        """
        if outcome.error is not None and outcome.error.cause is Cause.UNAVAILABLE:
            return
        for held in list(self._held.values()):
            if outcome.error is not None or (held.opened is not None and held.opened.name in outcome.value):
                self.drop(held)
        if outcome.error is None:
            self._watch()

    def _watch(self) -> None:
        """Asks for the contexts that another socket is going to use."""
        self._watching = self._new_token()
        self.effects.append(Call(request=NextLostContexts(), token=self._watching))

    def drop(self, held: HeldContext) -> None:
        """Forgets a context and its peers."""
        if self._held.get(held.kid) is held:
            del self._held[held.kid]
        if held.asked is not None:
            del self._asked[held.asked]
        self._parked_count -= len(held.parked)
        held.parked = []
        self._forget_peers(held)


def _told_apart(opened: OpenedContext) -> tuple[str, str, bool]:
    """Returns the fields that distinguish contexts: the state of one that is used elsewhere does not serve here."""
    return opened.name, opened.principal.name, opened.elsewhere
