"""OSCORE after a restart and on several processes: who uses a context, and what a captured message does."""

from adapters.coap.codec.registry import ACK, BAD_REQUEST, CHANGED, CON, EMPTY, GET, OBSERVE
from adapters.coap.codec.wire import Packet, decode, encode
from adapters.coap.oscore.option import decode_option
from store.api.message import Message
from tests.support.coap.coap_driver import OTHER
from tests.support.coap.oscore_peer import ClientContext, OscoreDriver, served

OSCORE = 9


def test_after_a_restart_a_client_proves_that_its_request_is_new() -> None:
    driver, client = served()
    old = client.protect_request("t/a/b", payload=b"old")
    driver.raw(old)
    before = driver.numbers.copy()
    driver.restart()
    challenge = driver.protected(client, "t/a/b", payload=b"1")
    assert challenge.code.dotted == "4.01"
    assert challenge.opt.echo
    replayed = driver.raw(old)
    assert len(replayed) == 1, "it is asked for an Echo like any other"
    assert [message.body for message in driver.stored] == [b"old"]
    answer = driver.protected(client, "t/a/b", payload=b"1", options=((252, challenge.opt.echo),))
    assert answer.code.dotted == "2.01"
    assert driver.protected(client, "t/a/b", payload=b"2").code.dotted == "2.01"
    assert driver.code(old) == "4.01 Replay detected"
    assert [message.body for message in driver.stored] == [b"old", b"1", b"2"]
    assert driver.numbers["dev42/01"] > before["dev42/01"]


def test_no_sender_sequence_number_is_used_twice() -> None:
    driver, client = served()
    used: list[int] = []
    for n in range(6):
        observe = client.protect_request("t/a/b", GET, token=b"obs", options=((OBSERVE, b""),))
        out = driver.raw(observe)
        challenge = client.open_response(out[0])
        if challenge.code.dotted == "4.01":
            options = ((OBSERVE, b""), (252, challenge.opt.echo))
            out += driver.raw(client.protect_request("t/a/b", GET, token=b"obs", options=options))
        for body in range(300):
            message = Message(address="a/b", body=b"%d" % body, id=f"{n}-{body}", content_type="text/plain")
            out += [encode(packet) for packet in driver.deliver(message, sub=max(driver.subscriptions))]
            for packet in map(decode, out[-1:]):
                if packet.type == CON:
                    driver.raw(encode(Packet(type=ACK, code=EMPTY, mid=packet.mid)))
            driver.complete(list(driver.endpoint.tick(now_ms=driver.now_ms)))
        for data in out:
            piv = decode_option(dict(decode(data).options)[OSCORE]).piv
            if piv is not None:
                used.append(int.from_bytes(piv, "big"))
        driver.restart()
    assert len(used) > 1_500
    assert len(used) == len(set(used))


def test_a_context_that_another_process_uses_is_given_up() -> None:
    driver, client = served()
    driver.protected(client, "t/a/b", GET, options=((OBSERVE, b""),))
    assert driver.subscribed() == ["a/b"]
    seen = client.protect_request("t/a/b", token=b"x")
    driver.raw(seen)
    driver.lose("dev42/01")
    driver.complete(list(driver.endpoint.tick(now_ms=driver.now_ms)))
    assert driver.subscribed() == []
    assert len(driver.watching) == 1, "the next call says that the context is not used any more"
    challenge = driver.protected(client, "t/a/b")
    assert challenge.opt.echo, "the other process may have seen newer requests"


def test_a_message_sent_again_by_a_stranger_takes_its_context_from_nobody() -> None:
    driver, client = served()
    captured = client.protect_request("t/a/b", payload=b"captured")
    driver.raw(captured)
    driver.numbers["dev42/01"] += 10
    driver.elsewhere = {"dev42/01"}
    driver.lose("dev42/01")
    for _ in range(3):
        assert decode(driver.raw(captured, peer=OTHER)[0]).code == CHANGED, "it asks for an Echo inside"
    driver.now_ms += 10_000
    driver.raw(captured, peer=OTHER)
    assert driver.taken == set()
    assert [message.body for message in driver.stored] == [b"captured"]


def test_a_context_moves_to_the_socket_that_its_client_proves_itself_to() -> None:
    driver, client = served()
    driver.numbers["dev42/01"], driver.elsewhere = 10, {"dev42/01"}
    options: tuple[tuple[int, bytes], ...] = ()
    echoes = []
    for taken in (set(), {"dev42/01"}):
        challenge = driver.protected(client, "t/a/b", payload=b"1", options=options)
        assert (challenge.code.dotted, driver.taken) == ("4.01", taken)
        echoes.append(challenge.opt.echo)
        options = ((252, challenge.opt.echo),)
    assert echoes[0] != echoes[1], "the socket before may have seen newer requests meanwhile"
    assert driver.stored == []
    assert driver.protected(client, "t/a/b", payload=b"1", options=options).code.dotted == "2.01"
    assert [message.body for message in driver.stored] == [b"1"]


def test_a_context_that_is_removed_ends_soon() -> None:
    driver, client = served()
    driver.protected(client, "t/a/b", GET, options=((OBSERVE, b""),))
    driver.contexts.clear()
    driver.now_ms += 10_000
    driver.raw(client.protect_request("t/a/b", token=b"y"))
    assert driver.subscribed() == []
    assert driver.code(client.protect_request("t/a/b", token=b"z")) == "4.01 Security context not found"


def test_whoever_guesses_a_kid_takes_its_context_from_nobody() -> None:
    driver = OscoreDriver()
    client = ClientContext()
    driver.provision("dev42", client)
    forged = ClientContext(secret=bytes(16))
    assert driver.code(forged.protect_request("t/a")) == "4.00 Decryption failed"
    assert driver.taken == set(), "which another process may be using"
    assert driver.numbers == {}
    both = [forged.protect_request("t/a"), client.protect_request("t/a/b")]
    found = [decode(data).code for data in driver.raw(*both)]
    assert found == [BAD_REQUEST, CHANGED]
    assert [message.address for message in driver.stored] == ["a/b"]
