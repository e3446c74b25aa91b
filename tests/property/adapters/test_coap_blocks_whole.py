"""A body in blocks is the body, in whatever size and however often its datagrams come."""

from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.coap.codec.registry import BLOCK1, BLOCK2, GET
from adapters.coap.messages.request import Block
from store.api.message import Message
from tests.support.coap.coap_driver import Driver, dotted, options_of, request
from tests.support.process.examples import examples

BODIES = st.builds(
    lambda seed, size: (seed * (size // len(seed) + 1))[:size], st.binary(min_size=1), st.integers(1, 700)
)


@given(BODIES, st.integers(0, 6), st.lists(st.integers(1, 3), min_size=1, max_size=50))
@settings(max_examples=examples(60), deadline=None)
def test_block1(body: bytes, exponent: int, repeats: list[int]) -> None:
    driver = Driver()
    size = 16 << exponent
    count = -(-len(body) // size)
    for n in range(count):
        option = (BLOCK1, Block(n, n < count - 1, exponent).encode())
        data = request("t/a", mid=n, options=(option,), payload=body[n * size : (n + 1) * size])
        answers = driver.exchange(*[data] * repeats[n % len(repeats)])
        assert {dotted(answer.code) for answer in answers} == {"2.31" if n < count - 1 else "2.01"}
    assert [message.body for message in driver.stored] == [body]
    assert len(driver.endpoint.transfers.uploads) == 0


@given(BODIES, st.sampled_from([16, 64, 1024]), st.lists(st.integers(0, 6), min_size=1, max_size=5))
@settings(max_examples=examples(60), deadline=None)
def test_block2(body: bytes, ours: int, exponents: list[int]) -> None:
    driver = Driver({"block_size": ours}, last=Message(address="a", body=body, id="1"))
    got, mid, exponent, more = b"", 0, exponents[0], True
    while more:
        exponent = min(exponent, exponents[mid % len(exponents)])  # a client may go on with smaller blocks
        block = Block(len(got) // (16 << exponent), False, exponent)
        (answer,) = driver.exchange(request("t/a", GET, mid=mid, options=((BLOCK2, block.encode()),)))
        sent = Block.decode(options_of(answer)[BLOCK2], "Block2")
        assert sent.offset == len(got)
        assert sent.size <= min(ours, block.size)
        got, mid, exponent, more = got + answer.payload, mid + 1, sent.exponent, sent.more
    assert got == body


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=20), st.integers(1, 20))
@settings(max_examples=examples(80), deadline=None)
def test_however_datagrams_are_gathered_into_wakes(requests: list[tuple[int, bool]], wake: int) -> None:
    """Each Message ID is stored once and every datagram of its is answered alike, in wakes of any size."""
    driver = Driver()
    datagrams = [request(f"t/a/{mid}", type=int(non), mid=mid) for mid, non in requests]
    answers = []
    for start in range(0, len(datagrams), wake):
        answers += driver.exchange(*datagrams[start : start + wake])
    distinct = list(dict.fromkeys(mid for mid, _ in requests))
    assert [message.address for message in driver.stored] == [f"a/{mid}" for mid in distinct]
    assert {answer.code for answer in answers} == {0x41}
