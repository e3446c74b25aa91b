"""The requests of a connection that wait for the gateway, by the answer that they wait for."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from adapters.http.handlers.actions import Command, Store
from adapters.http.handlers.credentials import Credentials, behind, read_credentials
from adapters.http.handlers.origin import check_host, check_origin, with_options
from adapters.http.handlers.routes import RouteMatch, resolve
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.request import HttpError, HttpRequest
from adapters.http.wire.response import Response, refused
from adapters.http.wire.transport import Exchange, Transport
from gateway.domain.errors import Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import ConnectionInfo, Outcome

LEAVING: Final = "the gateway is going down"
BEHIND_STREAM: Final = "an event stream is open on this connection: send it on another one"
ASKED_MAX: Final = 16  # questions of reads at a time: an answer may be as large as a message


class Pending(NamedTuple):
    """A request that has a handler and waits for its turn, or for its sender to be known."""

    exchange: Exchange
    request: HttpRequest
    found: RouteMatch
    credentials: Credentials


def judged(
    request: HttpRequest, options: HttpOptions, info: ConnectionInfo, *, page: bool
) -> tuple[RouteMatch, Credentials] | Response:
    """Returns the handler of a request and the credentials of its sender, or the answer that its head decides.

    With `page` the request may be any page's, whatever it asks for (`check_origin`).
    """
    try:
        found = resolve(request)
        if isinstance(found, Response):
            return with_options(request, found, options)
        check_origin(request, options, page=page)
        credentials = read_credentials(request)
        if info.loopback:
            check_host(request, credentials, options)
        if (proxy := info.forwarding) is not None:
            credentials = behind(credentials, proxy.client(request.get(proxy.header.encode())))
    except (HttpError, Refusal) as error:
        return refused(error)
    return found, credentials


def head_refusal(head: HttpRequest, options: HttpOptions, info: ConnectionInfo) -> Response | None:
    """Returns the refusal that a request's head alone decides (`adapters.http.wire.transport.Judge`)."""
    found = judged(head, options, info, page=False)
    return found if isinstance(found, Response) and found.status >= HTTPStatus.BAD_REQUEST else None


class PendingQuestion(NamedTuple):
    """A question that the gateway has been asked for a request."""

    exchange: Exchange
    request: HttpRequest
    who: Principal | None
    reply: Callable[[Any], Response | Store | Command | None]
    failed: Callable[[Refusal], Response | None] | None
    reads: bool

    def answered(self, outcome: Outcome) -> Response | Store | Command | None:
        """Returns the response, or messages to store; None where the response is still to come."""
        if outcome.error is None:
            return self.reply(outcome.value)
        return refused(outcome.error) if self.failed is None else self.failed(outcome.error)


class Requests:
    """A connection's requests that are all there and are not handled yet."""

    __slots__ = ("_passed", "_senders", "_turn", "body_bytes", "ordered")

    def __init__(self) -> None:
        self.ordered = True  # none begins before those ahead of it (HTTP/1.1 pipelining)
        self._turn: deque[Pending] = deque()  # requests whose turn has not come
        self._passed: deque[Pending] = deque()  # reads that may not begin yet, and that others have passed
        self.body_bytes = 0  # of all of them
        self._senders: dict[Credentials, list[Pending]] = {}  # requests whose sender is being authenticated

    def __bool__(self) -> bool:
        return bool(self._turn or self._passed or self._senders)

    @property
    def asking(self) -> bool:
        """Returns whether a sender is being authenticated."""
        return bool(self._senders)

    def append(self, pending: Pending) -> None:
        """Queues a request."""
        self._turn.append(pending)
        self.body_bytes += len(pending.request.body)

    @property
    def first(self) -> Pending | None:
        """Returns the request that has waited for its turn longest."""
        queue = self._passed or self._turn
        return queue[0] if queue else None

    def pop(self, may_begin: Callable[[Pending], bool]) -> Pending | None:
        """Removes and returns the next request that may begin. Reads that may not are passed where order is free."""
        if self._passed and may_begin(self._passed[0]):
            return self._popped(self._passed)
        while self._turn:
            if may_begin(self._turn[0]):
                return self._popped(self._turn)
            if self.ordered:
                break
            self._passed.append(self._turn.popleft())
        return None

    def _popped(self, queue: deque[Pending]) -> Pending:
        pending = queue.popleft()
        self.body_bytes -= len(pending.request.body)
        return pending

    def wait(self, pending: Pending) -> bool:
        """Queues a request until its sender is authenticated; returns whether that has to be started."""
        waiting = self._senders.get(pending.credentials)
        new = waiting is None
        if waiting is None:
            waiting = self._senders[pending.credentials] = []
        waiting.append(pending)
        self.body_bytes += len(pending.request.body)
        return new

    def answered(self, credentials: Credentials) -> Sequence[Pending]:
        """Removes and returns the requests of an authenticated sender."""
        waiting = self._senders.pop(credentials, [])
        self.body_bytes -= _body_bytes(waiting)
        return waiting

    def put_back(self, waiting: Sequence[Pending]) -> None:
        """Puts requests back to the front of the queue."""
        self._turn.extendleft(reversed(waiting))
        self.body_bytes += _body_bytes(waiting)

    def gone(self, exchange: Exchange) -> None:
        """Removes the requests of an exchange whose response is not wanted any more."""
        for waiting in (self._passed, self._turn, *self._senders.values()):
            for one in [one for one in waiting if one.exchange == exchange]:
                waiting.remove(one)
                self.body_bytes -= len(one.request.body)

    def drop(self, *, bodies: bool = False) -> Sequence[Pending]:
        """Removes and returns the requests, or with `bodies` those that have one."""
        dropped: list[Pending] = []
        for waiting in (self._passed, self._turn, *self._senders.values()):
            dropped += [one for one in waiting if one.request.body or not bodies]
            kept = [one for one in waiting if bodies and not one.request.body]
            waiting.clear()
            waiting.extend(kept)
        self.body_bytes = 0
        return dropped


def may_begin(
    pending: Pending,
    transport: Transport | None,
    requests: Requests,
    asked: Collection[PendingQuestion],
    *,
    publishing: bool,
) -> bool:
    """Returns whether a request has room for its answer and nothing to wait for before it (RFC 9112, 9.3.2).

    `asked` are the questions in flight, `publishing` says that messages are.
    """
    if transport is None:
        return True
    if (pending.request.safe or pending.found.reads) and (transport.full or _reads_enough(asked)):
        return False
    if not transport.ordered:
        return True
    if requests.asking:
        return False
    if pending.request.safe:
        return not (publishing or any(not one.request.safe for one in asked))
    return not asked


def _reads_enough(asked: Collection[PendingQuestion]) -> bool:
    """Returns whether as many reads are in flight as may be; others, which may pass them, do not count."""
    return len(asked) >= ASKED_MAX and sum([one.request.safe or one.reads for one in asked]) >= ASKED_MAX


def _body_bytes(requests: Sequence[Pending]) -> int:
    return sum([len(one.request.body) for one in requests])
