"""Errors on their way to a peer and back, in the forms that both protocols have, and what breaks a stream."""

import asyncio

import grpc
import grpc.aio
import pytest

from store.base.streams import ERROR_KEY, ErrorTable, Stream

pytestmark = pytest.mark.anyio


class Trouble(Exception):
    """The root."""


class Unreachable(Trouble):
    """The peer does not answer."""


class Elsewhere(Trouble):
    """It is at an address."""

    def __init__(self, text, address):
        super().__init__(text)
        self.text, self.address = text, address


class Later(Elsewhere):
    """No peer knows this one."""


STATUSES = {Elsewhere: grpc.StatusCode.UNAVAILABLE, Trouble: grpc.StatusCode.INTERNAL}
TABLE = ErrorTable(
    Trouble,
    [Trouble, Unreachable, Elsewhere],
    STATUSES,
    unreachable=Unreachable,
    fields={Elsewhere: ("text", "address")},
)
PLAIN = ErrorTable(Trouble, [Trouble, Unreachable], STATUSES, unreachable=Unreachable, text_chars_max=5)


class Call:
    """A call whose messages and end are given; without an end it goes on for ever."""

    def __init__(self, *messages, end=None):
        self.messages, self.end, self.sent = list(messages), end, []

    async def read(self):
        if self.messages:
            return self.messages.pop(0)
        if self.end is None:
            await asyncio.Event().wait()
        raise self.end

    async def write(self, message):
        if self.end is not None:
            raise asyncio.InvalidStateError("the call is over")
        self.sent.append(message)

    def done(self):
        return self.end is not None

    async def code(self):
        return self.end.code()

    async def details(self):
        return self.end.details()

    async def trailing_metadata(self):
        return self.end.trailing_metadata()


def ended(code=grpc.StatusCode.UNAVAILABLE, *metadata):
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), details="gone")


class Context:
    async def abort(self, code, text, trailing_metadata):
        raise ended(code, *trailing_metadata)


def test_an_error_travels_with_what_it_is_made_from():
    revived = TABLE.revive(TABLE.describe(Elsewhere("it moved", "n2:1")))
    assert (type(revived), revived.text, revived.address) == (Elsewhere, "it moved", "n2:1")
    assert type(TABLE.revive(TABLE.describe(Later("it moved", "n2:1")))) is Elsewhere
    assert str(PLAIN.revive(PLAIN.describe(Unreachable("1234567")))) == "12345"


def test_an_error_that_is_not_known_tells_its_name():
    described = PLAIN.describe(Elsewhere("it", "n2:1"))
    assert PLAIN.revive(described) is None
    assert PLAIN.text_of(described) == "Elsewhere: it"
    for junk in (b"", b"\xc1", b"\x92\xa1a\xa1b"):
        assert PLAIN.revive(junk) is None
    assert PLAIN.text_of(b"\xc1") == "an error that cannot be read"


async def test_a_stream_raises_the_error_that_its_peer_has_refused_it_with():
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await TABLE.refuse(Context(), Elsewhere("it moved", "n2:1"))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert refused.value.trailing_metadata()[ERROR_KEY]
    for broken in (Stream(Call(end=refused.value), TABLE, "n1:1").read, lambda: broken_write(refused.value)):
        with pytest.raises(Elsewhere) as found:
            await broken()
        assert found.value.address == "n2:1"


async def broken_write(end):
    await Stream(Call(end=end), TABLE, "n1:1").write(b"")


async def test_a_stream_that_breaks_or_ends_says_that_its_peer_is_unreachable():
    with pytest.raises(Unreachable, match="UNAVAILABLE: gone"):
        await Stream(Call(end=ended()), TABLE, "n1:1").read()
    with pytest.raises(Unreachable, match="n1:1 has ended the connection"):
        await Stream(Call(grpc.aio.EOF), TABLE, "n1:1").read()
    foreign = ended(grpc.StatusCode.INTERNAL, (ERROR_KEY, b"\xc1"))
    with pytest.raises(Unreachable, match="INTERNAL: gone"):
        await Stream(Call(end=foreign), TABLE, "n1:1").read()


async def test_a_silent_peer_is_unreachable_when_its_time_is_over():
    stream = Stream(Call(b"hello"), TABLE, "n1:1")
    async with stream.within(60):
        assert await stream.read() == b"hello"
    with pytest.raises(Unreachable, match=r"n1:1 has not answered within 0.01 s"):
        async with stream.within(0.01):
            await stream.read()
