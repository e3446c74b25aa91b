"""The messages between controllers, and between them and everybody else: MessagePack in pipes, and in gRPC.

    Peer       controller -> controller   a `Hello`, then lists of Raft messages; nothing comes back
    Install    controller -> controller   by gRPC: a `Hello`, then a Raft message too large for the others, in parts
    Follow     anybody -> controller      a `FollowRequest`; back come `Fed`: a snapshot in parts, commands in order
    Command    anybody -> controller      a `CommandHello`, lists of `NumberedRequest`; back come `CommandGreeting` and
                                          `Answers`
    Heartbeat  store node -> controllers  a `HeartbeatHello`, then lists of `Heartbeat`; back come lists of `Pushed`
    Identify   controller -> controller   unary: an `Introduction`, answered by an `Identification`
    Status, Routes                        unary

The node that begins a stream says of which cluster it is, as soon as it knows that; another cluster's controller
refuses it. A refused call ends with a status, and with the error itself in the trailing metadata (`ERRORS`).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, TypeVar, Union

import grpc
import msgspec
from msgspec import Meta

from controller.api import client
from controller.api.client import ControllerError, ControllerRequest, Group, answer_type
from controller.api.commands import COMMANDS
from controller.api.requests import (
    TEXT_CHARS_MAX,
    AddMember,
    AskService,
    Barrier,
    CompareMetadata,
    Elect,
    Number,
    RemoveMember,
    Text,
    Transfer,
)
from controller.complaints.messages import Report
from controller.disk.driver import OutcomeUnknown
from controller.elections.registry import RegistryFull
from controller.raft import BadMessage, ChangeRefused, NotLeader, ProposalDropped, ProposalTooLarge, TransferRefused
from store.base import pipes, streams
from store.base.listening.sockets import UNIX
from store.base.streams import ErrorTable

SERVICE = "headgate.controller.v1.Controller"
PEER, INSTALL, FOLLOW, COMMAND, HEARTBEAT = "Peer", "Install", "Follow", "Command", "Heartbeat"
STATUS, ROUTES, IDENTIFY = "Status", "Routes", "Identify"

COMMAND_BYTES_MAX = 1 << 20  # of one command
PART_BYTES = 1 << 20  # of a message sent in parts
MESSAGE_BYTES = 1 << 20  # of many in one message, unless the first alone has more
MESSAGE_BYTES_MAX = 8 << 20
BUFFER_BYTES = 16 << 10  # a stream's receive buffer: thousands of them are mostly silent
SNAPSHOT_BYTES_MAX = 1 << 30  # of a state in parts
ASKED_MAX = 1_024  # commands of one client in flight
ALIVE_S = 0.5  # a controller says something that often on every stream, a tenth later at most
SILENCE_S = 1.5  # a controller silent for so long is given up, and its requests go to another one

_T = TypeVar("_T")
Digest = Annotated[bytes, Meta(max_length=64)]


class BadRequest(ControllerError):
    """A request that its method does not take."""


class BadAnswer(ControllerError):
    """Bytes from a controller that are no answer of its method."""


class NotLeading(ControllerError):
    """An answer of a controller that does not lead: the leader's `address`, empty when none is known."""

    def __init__(self, address: str = "") -> None:
        super().__init__(f"the leader is at {address}" if address else "no leader is known")
        self.address = address


class _Wire(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    pass


# ---- controllers among themselves


class Hello(_Wire, frozen=True, array_like=True):
    """The speaker, and where it serves."""

    id: Number
    address: Text
    cluster: Text = ""


class Introduction(_Wire, frozen=True, array_like=True):
    """The controller that asks others who they are, and its memory (see `controller.incarnations`)."""

    id: Number
    address: Text
    cluster: Text
    incarnation: Text


class Identification(_Wire, frozen=True, array_like=True):
    """The controller that answers, the end of its log, and what it knows about the asker.

    `fresh`: it has never had to do with a cluster. `named` is the incarnation by which it knows the asker. The
    witness is the last report of this very incarnation: its term, and the last entry it had acknowledged to its leader.
    `generation` is how often the metadata was recovered from one controller.
    """

    id: Number
    incarnation: Text
    cluster: Text
    fresh: bool
    votes: bool
    led: bool
    term: Number
    last_term: Number
    last_index: Number
    named: Text
    witness_term: Number
    witness_index: Number
    generation: Number = 0


# ---- following the state


class FollowRequest(_Wire, frozen=True, array_like=True):
    """A request for all commands after `index`, which the client has applied (0: none). `digest` covers them all."""

    index: Number
    cluster: Text = ""
    digest: Digest = b""


class Fed(_Wire, frozen=True, array_like=True):
    """More of the state. `index` is how far it goes, all that is before included.

    `part` is a part of a snapshot that is `left` bytes from its end; `index` counts with the last one. `commands` are
    to be applied in order. `leader` is where the leader of `term` serves, as far as this controller knows; `applied` is
    how far it is itself.
    """

    index: Number
    commands: tuple[bytes, ...] = ()
    part: bytes | None = None
    left: Number = 0
    leader: Text = ""
    term: Number = 0
    applied: Number = 0


# ---- commands


REQUESTS: Sequence[type[ControllerRequest[Any]]] = (
    *COMMANDS,
    *(Elect, AddMember, RemoveMember, Transfer, Barrier, CompareMetadata, AskService, Report),
)


class CommandHello(_Wire, frozen=True, array_like=True):
    """The client whose commands these are: a client has one such stream, and a new one ends the one before."""

    client: Annotated[str, Meta(min_length=1, max_length=64)]
    cluster: Text = ""
    index: Number = 0  # which it has applied, and the digest of all commands until then
    digest: Digest = b""


class CommandGreeting(_Wire, frozen=True, array_like=True):
    """Commands are taken, as long as this controller leads in `term`."""

    term: Number


class NumberedRequest(_Wire, frozen=True, array_like=True):
    """A request, and the number its answer will have."""

    number: Number
    request: Annotated[bytes, Meta(max_length=COMMAND_BYTES_MAX)]


class NumberedAnswer(_Wire, frozen=True, array_like=True):
    """The answer to a request, or the error that refused it, which was so at `index`."""

    number: Number
    index: Number
    answer: bytes = b""
    error: bytes = b""


class Answers(_Wire, frozen=True, array_like=True):
    """Answers as they come; none of them: a sign of life."""

    answers: tuple[NumberedAnswer, ...] = ()


# ---- store nodes


class HeartbeatHello(_Wire, frozen=True, array_like=True):
    """The groups whose changes a store node wants to know."""

    groups: Annotated[tuple[Number, ...], Meta(max_length=1_024)]
    cluster: Text = ""


class Pushed(_Wire, frozen=True, array_like=True):
    """A group as of `index`; None: there is none."""

    number: Number
    index: Number
    group: Group | None


class RoutesRequest(_Wire, frozen=True, array_like=True):
    """The route of one group, or of all."""

    group: Number | None = None


# ---- bytes

encode = msgspec.msgpack.Encoder().encode
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def decode(data: bytes, kind: Any) -> Any:
    """Returns a value of this type. Raises `BadRequest`."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadRequest(f"not what is expected here: {error}") from error


open_channel = partial(streams.open_channel, message_bytes_max=MESSAGE_BYTES_MAX)
PIPE_SIZES = pipes.PipeSizes(MESSAGE_BYTES_MAX, BUFFER_BYTES)


def open_streams(target: str, credentials: Any) -> Any:
    """Returns a channel for streams to a controller: of pipes, and of gRPC at a Unix socket."""
    if target.startswith(UNIX):
        return open_channel(target, credentials)
    return pipes.open_channel(target, credentials, sizes=PIPE_SIZES)


def path(method: str) -> str:
    """Returns a method as gRPC names it."""
    return f"/{SERVICE}/{method}"


_NONE = type(None)
_Requests: Any = Union[REQUESTS]  # noqa: UP007 - a table
_ANSWERS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in map(answer_type, REQUESTS) if kind is not _NONE}


def decode_request(data: bytes) -> ControllerRequest[Any]:
    """Returns the request of these bytes. Raises `BadRequest`."""
    found: ControllerRequest[Any] = decode(data, _Requests)
    return found


def encode_answer(answer: Any) -> bytes:
    """Returns an answer with its type's name."""
    return encode((None if answer is None else type(answer).__name__, answer))


def decode_answer(data: bytes) -> Any:
    """Returns the answer that `encode_answer` was given. Raises `BadRequest`."""
    name, body = decode(data, tuple[str | None, msgspec.Raw])
    if name is None:
        return None
    kind = _ANSWERS.get(name)
    if kind is None:
        raise BadRequest(f"an answer of type {name!r}")
    return decode(body, kind)


# ---- errors

_STATUSES: Mapping[type[Exception], grpc.StatusCode] = {
    BadRequest: grpc.StatusCode.INVALID_ARGUMENT,
    BadMessage: grpc.StatusCode.INVALID_ARGUMENT,
    NotLeading: grpc.StatusCode.UNAVAILABLE,
    NotLeader: grpc.StatusCode.UNAVAILABLE,
    OutcomeUnknown: grpc.StatusCode.UNAVAILABLE,
    client.ControllerClosed: grpc.StatusCode.UNAVAILABLE,
    client.ControllerOverloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RegistryFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    client.ControllerDamaged: grpc.StatusCode.DATA_LOSS,
    ControllerError: grpc.StatusCode.FAILED_PRECONDITION,
}

ERRORS: Final[ErrorTable[ControllerError]] = ErrorTable(
    ControllerError,
    [
        kind
        for kind in (
            *(one for one in vars(client).values() if getattr(one, "__module__", "") == client.__name__),
            *(BadRequest, NotLeading, OutcomeUnknown, RegistryFull),
            *(ProposalDropped, ProposalTooLarge, ChangeRefused, TransferRefused),
        )
        if isinstance(kind, type) and issubclass(kind, ControllerError)
    ],
    _STATUSES,
    unreachable=client.ControllerUnreachable,
    fields={NotLeading: ("address",)},
    text_chars_max=TEXT_CHARS_MAX,
)
describe = ERRORS.describe


def revive(described: bytes) -> ControllerError:
    """Returns the error that `describe` was given; a plain `ControllerError` when it is none that is known."""
    return ERRORS.revive(described) or ControllerError(ERRORS.text_of(described))
