"""Statements of RFC 7252, 7641, 7959 and 8323 about a server, as a table: each names the test that holds it.

A statement whose test is gone fails here. Those at the end of the table have their tests in this file.
"""

import re
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from adapters.coap.codec.registry import BLOCK1, BLOCK2, CONTENT, GET, OBSERVE, SIZE2
from adapters.coap.codec.wire import encode_options, encode_uint
from adapters.coap.messages.request import Block
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.stream import CoapConnection, StreamsContext
from adapters.coap.stream.frames import encode_frame, read_head
from adapters.coap.stream.signals import ABORT, CSM, MAX_MESSAGE_SIZE, PING, PONG
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import ConnectionInfo, Outcome
from store.api.message import Message
from tests.support.coap.coap_driver import Driver, dotted, options_of

LAST = Message(address="a", body=b"1", id="1", content_type="text/plain")
LARGE = Message(address="a", body=bytes(range(100)), id="1")

STATEMENTS = {
    "7252 3: a message has a header of 4 bytes, a token, options and a payload": (
        "wire: the_example_of_the_specification"
    ),
    "7252 3: a message of another version is passed over": ("endpoint: what_is_passed_over"),
    "7252 3: a token is of 0 to 8 bytes": ("wire: what_is_no_message"),
    "7252 3: a payload marker without a payload is a format error": ("wire: what_is_no_message"),
    "7252 3.1: options come by their numbers, as deltas": ("wire: extended_deltas_and_lengths"),
    "7252 3.1: repeats of an option keep their order": ("wire: options_are_put_in_order_and_repeats_keep_theirs"),
    "7252 3.2: an integer is of as few bytes as it takes, and is read with leading zeros": ("wire: uint_values"),
    "7252 4.1: an Empty message has nothing behind its header": ("wire: what_is_no_message"),
    "7252 4.2: a Confirmable message that cannot be processed is reset": (
        "endpoint: what_is_no_request_is_reset_or_passed_over"
    ),
    "7252 4.2: a Confirmable message is sent again, at most MAX_RETRANSMIT times, with a time-out that doubles": (
        "endpoint: a_separate_response_is_sent_again_until_it_is_given_up"
    ),
    "7252 4.2: an acknowledgement or a Reset ends that": (
        "endpoint: it_is_sent_again_no_more_once_the_peer_has_it_or_refuses_it"
    ),
    "7252 4.3: an Empty Confirmable message is answered with a Reset": ("endpoint: a_ping_is_answered_with_a_reset"),
    "7252 4.3: a Non-confirmable message is not acknowledged": (
        "endpoint: a_non_gets_no_acknowledgement_and_one_response"
    ),
    "7252 4.4: a Message ID is not used again within EXCHANGE_LIFETIME": (
        "endpoint: our_message_ids_differ_from_each_other_as_the_peers_do"
    ),
    "7252 4.4: Message IDs are of an endpoint": ("endpoint: message_ids_belong_to_their_peer"),
    "7252 4.5: a repeated Confirmable message is acknowledged alike and processed once": (
        "endpoint: a_repeated_request_gets_the_same_response_and_is_stored_once"
    ),
    "7252 4.5: a repeated Non-confirmable message is passed over": ("endpoint: a_repeated_non_is_passed_over"),
    "7252 4.7: one Confirmable message to an endpoint is in flight": (
        "separate: separate_responses_come_one_after_the_other"
    ),
    "7252 4.8.2: that lasts for EXCHANGE_LIFETIME": ("endpoint: a_message_id_is_free_after_its_lifetime"),
    "7252 4.8.2: a Message ID of a Non-confirmable message can be used again after NON_LIFETIME": (
        "endpoint: a_message_id_of_a_non_is_free_after_non_lifetime"
    ),
    "7252 5.2.1: a response may come in the acknowledgement": (
        "endpoint: what_is_stored_is_answered_and_what_is_refused_too"
    ),
    "7252 5.2.2: a late response comes in a message of its own, behind an empty acknowledgement": (
        "endpoint: a_late_answer_travels_in_a_message_of_its_own"
    ),
    "7252 5.2.3: a Non-confirmable request is answered by a Non-confirmable response": (
        "reads: a_non_is_answered_by_a_non"
    ),
    "7252 5.3.1: the token of a response is that of its request": ("endpoint: every_length_of_token"),
    "7252 5.4.1: a critical option that is not understood is a bad option": (
        "endpoint: a_critical_option_not_understood"
    ),
    "7252 5.4.1: an elective option that is not understood is passed over": (
        "endpoint: an_elective_option_not_understood_is_passed_over"
    ),
    "7252 5.4.5: an option that may not be repeated counts as not understood": (
        "endpoint: a_critical_option_given_twice"
    ),
    "7252 5.5.2: a diagnostic payload is text in UTF-8": ("endpoint: a_diagnostic_is_cut_between_characters"),
    "7252 5.6.1, 5.10.5: a response says by Max-Age how long it is fresh": ("reads: max_age_ends_with_the_message"),
    "7252 5.6.2, 5.9.1.3: an ETag that still holds is answered 2.03 without a payload": (
        "reads: an_etag_that_still_holds"
    ),
    "7252 5.7.2: a server that is no proxy answers 5.05": ("endpoint: this_is_no_proxy"),
    "7252 5.8: a method that is not there is answered 4.05": ("endpoint: other_methods"),
    "7252 5.8.3: a PUT that creates is answered 2.01, one that changes 2.04": (
        "resources: a_put_that_creates_is_answered_2_01_and_one_that_changes_2_04"
    ),
    "7252 5.8.4: a DELETE is answered 2.02": ("resources: a_delete_takes_the_last_value_and_the_retained_message_away"),
    "7252 5.9: each cause of a refusal has its code": ("endpoint: every_cause_has_its_code"),
    "7252 5.9.2.9: 4.13 says by Size1 how much is taken": ("endpoint: too_large_a_body"),
    "7252 5.10.1: a segment of a path is not . or ..": ("mapping: paths_that_are_none"),
    "7252 5.10.1: a segment may hold any text": (
        "resources: any_segment_can_be_published_read_deleted_and_found_in_the_list"
    ),
    "7252 5.10.3, 12.3: an opaque body has whatever Content-Format it came in": (
        "reads: a_number_comes_back_as_it_went_in"
    ),
    "7252 5.10.4: what is not to be had in an acceptable format is answered 4.06": ("reads: accept"),
    "7252 5.10.6.1: an ETag is of one representation": ("reads: an_etag_that_no_longer_holds"),
    "7252 5.10.8.1: If-Match holds for one of its ETags, or where anything is": (
        "conditions: if_match_holds_for_any_of_its_etags_in_whatever_format_they_were_given"
    ),
    "7252 5.10.8.1: else nothing is done, and 4.12 is answered": (
        "conditions: a_condition_that_does_not_hold_stores_nothing"
    ),
    "7252 5.10.8.2: If-None-Match holds where nothing is": ("conditions: if_none_match_holds_where_nothing_is"),
    "7252 5.10.9: Size1 in a response says the most that is taken": ("endpoint: too_large_a_body"),
    "7252 7.2: resources are listed at /.well-known/core": ("reads: well_known_core"),
    "7252 7.2.1, 6690 4.1: the list can be filtered": ("reads: links_are_filtered"),
    "7641 3.1: a registration is answered with the representation, the token and Observe": (
        "observe: a_registration_is_answered_with_the_last_value_and_a_number"
    ),
    "7641 3.2: each notification has the token of the registration": (
        "observe: each_message_is_a_notification_with_the_token_and_a_higher_number"
    ),
    "7641 3.3.1: Max-Age says until when a notification is fresh": (
        "observe: a_notification_lives_no_longer_than_its_message"
    ),
    "7641 3.5: a Confirmable notification may be acknowledged, and others follow": (
        "observe: the_newest_message_waits_for_an_acknowledgement"
    ),
    "7641 3.6: Observe 1 with the token ends an observation": "observe: observe_1_ends_the_observation",
    "7641 3.6: a Reset ends an observation": "observe: a_reset_of_a_confirmable_notification_ends_the_observation",
    "7641 4.1: an entry is replaced by a registration with its endpoint and token": (
        "observe: a_new_registration_with_the_same_token_replaces_the_observation"
    ),
    "7641 4.1: a server that cannot add an entry answers without Observe": (
        "observe: observers_beyond_the_limit_of_all_are_only_answered"
    ),
    "7641 4.2: an error response ends the observation": "observe: a_deletion_ends_the_observation",
    "7641 4.2: notifications keep the Content-Format of the first response": (
        "observe: another_content_format_ends_the_observation"
    ),
    "7641 4.3: an observer ends with the last value": "property: an_observer_ends_with_the_last_value",
    "7641 4.4: sequence numbers rise, by at most half their range in 128 s": (
        "observe: a_number_follows_the_clock_and_never_falls"
    ),
    "7641 4.5: a time-out of a Confirmable notification ends the observation": (
        "observe: an_observer_that_does_not_acknowledge_is_forgotten"
    ),
    "7641 4.5: a client is asked to acknowledge now and then": "observe: every_nth_notification_is_confirmable",
    "7641 4.5.1: newer notifications wait for one in flight": "observe: waiting_messages_take_the_room_of_one",
    "7641 4.5.1: one Confirmable message to a client is in flight": (
        "nstart: commands_of_several_addresses_come_one_after_the_other"
    ),
    "7641 4.5.2: a newer state takes the place of one that is sent again": (
        "observe: the_last_of_a_confirmable_notification_and_an_error_is_the_error"
    ),
    "7959 2.2: a block is as long as its size, but for the last": "blocks: a_block_that_is_not_what_it_says",
    "7959 2.3: a later block may be of a smaller size": "blocks: smaller_blocks_from_the_second_one_on",
    "7959 2.4: blocks are no larger than asked for": "blocks: blocks_no_larger_than_asked_for_nor_than_ours",
    "7959 2.5: a body is acted upon as a whole": "blocks: a_body_in_blocks_is_published_as_a_whole",
    "7959 2.5: a first block begins anew": "blocks: the_first_block_begins_anew",
    "7959 2.5: transfers are told apart by their options": "blocks: the_options_that_name_a_transfer_count",
    "7959 2.6: a notification is a first block": "observe: a_large_notification_is_its_first_block",
    "7959 2.9.2: 4.08 where a block is missing": "blocks: a_block_is_missing",
    "7959 2.9.3: 4.13 with Size1 where a body is too large": "blocks: too_large_a_body_in_blocks",
    "7959 3.2: a smaller size is asked for in the first response": "blocks: a_smaller_block_size_is_asked_for",
    "7959 7: state of blocks is limited": "blocks: limits_of_transfers",
    "8323 3.2: a frame's length takes as many bytes as it must": "stream: lengths_take_as_many_bytes_as_they_must",
    "8323 3.3: a token is matched in its connection": "stream: requests_are_answered_by_their_tokens",
    "8323 3.4: empty messages are passed over": (
        "stream: an_unknown_signal_is_aborted_and_unknown_classes_and_empty_frames_are_passed_over"
    ),
    "8323 3.4: they can always be sent": (
        "stream: empty_messages_before_the_csm_are_passed_over_and_do_not_put_its_time_off"
    ),
    "8323 5.2: a critical option of a signal that is not understood aborts": (
        "stream: a_critical_option_of_a_signal_that_is_not_understood_aborts"
    ),
    "8323 5.3: the first message is a CSM": "stream: both_sides_begin_with_a_csm",
    "8323 5.3: another beginning is aborted": "stream: another_beginning_is_aborted",
    "8323 5.3.1: messages fit the peer's Max-Message-Size": "stream: bodies_are_read_in_blocks_that_the_peer_can_take",
    "8323 5.4: a Ping with Custody is answered behind what was asked for": (
        "stream: a_ping_is_answered_and_with_custody_behind_what_was_asked_for"
    ),
    "8323 5.5: a Release lets responses come": "stream: a_release_waits_for_the_answers",
    "8323 5.6: an Abort ends a connection": "stream: an_abort_closes",
    "8323 6: several blocks come in one message (BERT)": "stream: a_row_of_blocks_may_come_in_one_message",
    "8323 7.1: each message is a notification": "stream: each_message_is_a_notification",
    "8323 8.2: a malformed message is aborted": "stream: a_malformed_request_is_aborted",
    # Held here.
    "7641 2: Observe is passed over where its value is none that is known": "statements: another_value_of_observe",
    "7641 4.2: an error notification has no Observe": "statements: an_error_that_ends_an_observation",
    "7959 2.2: SZX 7 is reserved": "statements: the_reserved_block_size",
    "7959 2.3: the M bit of Block2 says nothing in a request": "statements: more_in_a_request_for_a_block",
    "7959 2.4: each block has the ETag of the body": "statements: every_block_has_the_etag",
    "7959 4: the first block says how large the body is": "statements: the_size_of_a_body",
    "8323 5.3: a CSM may come again, and counts from then on": "statements: another_csm",
    "8323 5.4: a Pong has the token of its Ping": "statements: the_token_of_a_pong",
}

FILES = {
    **{name: f"test_coap_{name}.py" for name in ("wire", "endpoint", "reads", "conditions", "mapping", "resources")},
    "observe": "test_coap_observe.py",
    "nstart": "test_coap_observe_nstart.py",
    "separate": "test_coap_separate.py",
    "blocks": "test_coap_blocks.py",
    "stream": "test_coap_stream.py",
    "statements": "test_coap_statements.py",
    "property": "../../../property/adapters/test_coap_observe_loss.py",
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_each_statement_has_its_test(statement: str) -> None:
    where, name = STATEMENTS[statement].split(": ")
    text = (Path(__file__).parent / FILES[where]).read_text("utf-8")
    assert re.search(rf"^(async )?def test_{name}\(", text, re.MULTILINE)


def observe(value: int) -> tuple[tuple[int, bytes], ...]:
    return ((OBSERVE, encode_uint(value)),)


@pytest.mark.parametrize("value", [2, 255, 0xFFFFFF])
def test_another_value_of_observe(value: int) -> None:
    driver = Driver(last=LAST)
    answer = driver.get("t/a", options=observe(value))
    assert dotted(answer.code) == "2.05"
    assert OBSERVE not in options_of(answer)
    assert driver.subscriptions == {}


def test_an_error_that_ends_an_observation() -> None:
    driver = Driver(last=LAST)
    driver.get("t/a", options=observe(0))
    driver.now_ms += 60_000
    (call,) = driver.endpoint.tick(now_ms=driver.now_ms)
    denied = Outcome(error=Refusal(Cause.FORBIDDEN, "no"))
    driver.complete(list(driver.endpoint.completed(call.token, denied, now_ms=driver.now_ms)))
    (packet,) = driver.sent()
    assert dotted(packet.code) == "4.03"
    assert OBSERVE not in options_of(packet)


@pytest.mark.parametrize("option", [BLOCK1, BLOCK2])
def test_the_reserved_block_size(option: int) -> None:
    driver = Driver(last=LAST)
    for code in (GET, 2):
        assert dotted(driver.ask("t/a", code, mid=code, options=((option, b"\x07"),)).code) == "4.00"
    assert driver.stored == []


def test_more_in_a_request_for_a_block() -> None:
    bodies = []
    for more in (False, True):
        driver = Driver(last=LARGE)
        answer = driver.get("t/a", options=((BLOCK2, Block(1, more, 1).encode()),))
        bodies.append(answer.payload)
    assert bodies == [LARGE.body[32:64]] * 2


def test_every_block_has_the_etag() -> None:
    driver = Driver(last=LARGE)
    etags = set()
    for number in range(4):
        answer = driver.get("t/a", mid=number, options=((BLOCK2, Block(number, False, 1).encode()),))
        assert answer.code == CONTENT
        etags.add(options_of(answer)[4])
    assert len(etags) == 1


def test_the_size_of_a_body() -> None:
    driver = Driver(last=LARGE)
    answer = driver.get("t/a", options=((BLOCK2, Block(0, False, 1).encode()), (SIZE2, b"")))
    assert options_of(answer)[SIZE2] == encode_uint(len(LARGE.body))


def test_another_csm() -> None:
    client = StreamClient()
    for size in (128, 4_096):
        assert client.send(signal(CSM, (MAX_MESSAGE_SIZE, encode_uint(size)))) == []
    (answer,) = client.send(signal(CSM, (MAX_MESSAGE_SIZE, encode_uint(1))))
    assert answer.code == ABORT


def test_the_token_of_a_pong() -> None:
    client = StreamClient()
    for token in (b"", b"1", b"12345678"):
        (answer,) = client.send(signal(PING, token=token))
        assert (answer.code, answer.token) == (PONG, token)


def signal(code: int, *options: tuple[int, bytes], token: bytes = b"") -> bytes:
    return encode_frame(code, token, encode_options(options))


class Frame(NamedTuple):
    """The code and the token of a frame."""

    code: int
    token: bytes


class StreamClient:
    """A connection behind its first CSM."""

    def __init__(self) -> None:
        info = ConnectionInfo(peer=("h", 1), local=("h", 2))
        self.connection = CoapConnection(info, StreamsContext(CoapOptions()), random=Random(1))
        self.send(signal(CSM))

    def send(self, data: bytes) -> list[Frame]:
        self.connection.receive(data, now_ms=1_000)
        output, at, found = self.connection.take_output(), 0, []
        while at < len(output):
            head = read_head(output, at)
            assert head is not None
            found.append(Frame(head.code, output[at + head.token_at : at + head.options_at]))
            at += head.end
        return found
