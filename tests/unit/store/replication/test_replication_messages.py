import msgspec
import pytest

from store.replication.errors import BadMessage
from store.replication.messages import Ack, Confirmed, Data, Hello, Refused, Welcome, Why, decode, encode, listed

HELLO = Hello(group=3, replica=2, session=77, epoch=5, epochs=((1, 0), (4, 100)), first=0, end=150)
WELCOME = Welcome(
    session=77, epoch=6, epochs=((1, 0), (6, 100)), first=0, end=120, cut_to=100, confirmed=110, needs_snapshot=False
)
MESSAGES = [
    HELLO,
    WELCOME,
    Data(session=77, epoch=6, start=(1 << 63) - 9, confirmed=1 << 62, frames=b"frames"),
    Confirmed(session=77, epoch=6, confirmed=100, sent=120, round=4),
    Ack(session=(1 << 63) - 1, epoch=6, flushed=(1 << 63) - 1, round=4),
    *(Refused(session=1, epoch=7, why=why, text="x") for why in Why),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_decoded_is_what_was_encoded(message):
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "bad",
    [
        msgspec.structs.replace(HELLO, end=-1),
        msgspec.structs.replace(HELLO, end=1 << 63),
        msgspec.structs.replace(HELLO, first=151),
        msgspec.structs.replace(HELLO, end=99),
        msgspec.structs.replace(HELLO, epoch=3),
        msgspec.structs.replace(HELLO, epochs=((4, 0), (1, 100))),
        msgspec.structs.replace(HELLO, epochs=((1, 0), (4, 0))),
        msgspec.structs.replace(HELLO, group=1 << 15),
        msgspec.structs.replace(WELCOME, cut_to=121),
        msgspec.structs.replace(WELCOME, confirmed=121),
        Data(session=1, epoch=1, start=0, confirmed=0, frames=b""),
        Refused(session=1, epoch=7, why=Why.MALFORMED, text="x" * 1025),
    ],
)
def test_what_contradicts_itself_is_refused(bad):
    with pytest.raises(BadMessage):
        decode(encode(bad))


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xc1", b"\x91\x09", encode(MESSAGES[0])[:-1], encode(["x"])])
def test_what_is_no_message_is_refused(data):
    with pytest.raises(BadMessage):
        decode(data)


def test_epochs_are_a_list_again():
    assert listed(HELLO).newest == 4
