"""Statements of RFC 9113 about a server, as a table: each names the test that holds it, and fails without it."""

import re
from pathlib import Path

import pytest
from hpack import Encoder
from hyperframe.frame import HeadersFrame, SettingsFrame

from adapters.http.wire.http2.guard import PREFACE
from tests.support.http.http_driver import Gateway

STATEMENTS = {
    "9113 3.3: a client that knows begins with the preface": "h2: interleaved_bodies",
    "9113 3.4: the preface may come in pieces, over TLS by ALPN": "h2: by_alpn_the_preface_may_come_in_pieces",
    "9113 3.4: the first frame of a client is SETTINGS": "errors: the_first_frame_has_to_be_settings",
    "9113 4.2: a frame that is longer than SETTINGS_MAX_FRAME_SIZE is a FRAME_SIZE_ERROR": (
        "h2: a_frame_too_long_is_refused_by_its_header"
    ),
    "9113 4.2, 6: frames of a wrong size or stream are the connection error that is told": (
        "errors: a_wrong_frame_is_the_connection_error_that_is_told"
    ),
    "9113 4.3: a header block that cannot be decoded is a COMPRESSION_ERROR": (
        "errors: a_header_block_that_cannot_be_decoded_is_a_compression_error"
    ),
    "9113 4.3: nothing comes between the frames of a header block": (
        "errors: nothing_comes_between_the_frames_of_a_header_block"
    ),
    "9113 5.1: a stream that has ended takes nothing more": "errors: a_stream_that_has_ended_takes_nothing_more",
    "9113 5.1: frames that come behind our RST_STREAM are ignored": "errors: frames_behind_our_reset_are_ignored",
    "9113 5.1.1: streams begin in ascending order": "errors: streams_begin_in_ascending_order",
    "9113 5.1.2: streams beyond SETTINGS_MAX_CONCURRENT_STREAMS are refused": (
        "h2: too_many_streams_and_headers_too_large"
    ),
    "9113 5.2: no more is sent than the windows take": "h2: sends_stay_within_the_window_and_go_on_when_it_opens",
    "9113 5.4.1: a connection error is told by GOAWAY": "h2: a_connection_error_is_said_by_goaway",
    "9113 5.4.2: a stream error is told by RST_STREAM, and others go on": (
        "errors: a_malformed_request_resets_its_stream_alone"
    ),
    "9113 5.5, 6: unknown frames and flags are passed over": (
        "statements: unknown_frames_settings_and_flags_are_passed_over"
    ),
    "9113 6.1: padding is no part of a body, and counts in the window": "errors: padding_is_no_part_of_a_body",
    "9113 6.1: padding longer than its frame is a PROTOCOL_ERROR": (
        "errors: padding_longer_than_the_frame_is_a_connection_error"
    ),
    "9113 6.4: a reset stream is sent nothing more": "h2: a_reset_request_is_stored_and_not_answered",
    "9113 6.6: a client promises nothing": "errors: a_promise_of_a_client_is_a_connection_error",
    "9113 6.8: GOAWAY lets streams end, and refuses new ones": "h2: shutdown_lets_streams_end_and_refuses_new_ones",
    "9113 6.8: requests that are whole are answered after the peer's GOAWAY": (
        "errors: requests_that_are_whole_are_answered_after_the_peers_goaway"
    ),
    "9113 6.8: a GOAWAY that tells an error ends the connection": (
        "errors: a_goaway_that_tells_an_error_ends_the_connection_at_once"
    ),
    "9113 6.9.1: a window of a stream that overflows is a FLOW_CONTROL_ERROR of the stream": (
        "errors: a_window_of_a_stream_that_overflows_is_a_stream_error"
    ),
    "9113 6.9.1: more data than the window is a FLOW_CONTROL_ERROR": (
        "errors: more_data_than_the_window_is_a_flow_control_error"
    ),
    "9113 6.9.1: what a malformed request has sent is given back to the window": (
        "errors: bodies_of_malformed_requests_leave_the_window"
    ),
    "9113 6.10: a header block may go on in CONTINUATION frames": "errors: a_header_block_may_go_on",
    "9113 8.1: a request may end with trailers": "errors: a_body_of_its_content_length_may_end_with_trailers",
    "9113 8.1: trailers without the end of the stream, or with pseudo-header fields, are malformed": (
        "errors: malformed_trailers_reset_their_stream"
    ),
    "9113 8.1.1: a body that is not of its content-length is malformed": (
        "errors: a_body_that_is_not_of_its_content_length_is_a_stream_error"
    ),
    "9113 8.3.1: a path begins with a slash; schemes are http and https": (
        "errors: heads_that_http_1_1_refuses_are_refused"
    ),
    "9110 10.1.1: a status that the head decides comes at once": (
        "errors: a_status_that_the_head_decides_comes_in_the_place_of_100"
    ),
    "9113 8.1: 100 (Continue) comes before the response": "h2: expect_100_continue",
    "9113 8.2, 8.3: malformed field names and pseudo-header fields are malformed requests": (
        "errors: a_malformed_request_resets_its_stream_alone"
    ),
    "9113 10.5: resets, and frames that bring nothing, are bounded": (
        "h2: a_flood_of_frames_that_bring_nothing_ends_the_connection"
    ),
    "9113 10.5: rapid resets are bounded": "h2: rapid_resets_end_the_connection",
    "9113 10.5: resets that our own stream errors answer are bounded": (
        "errors: resets_that_our_own_stream_errors_answer_are_bounded"
    ),
    "9113 10.5.1: a header block has a limit": "errors: a_header_block_without_end_is_refused",
    "9113 10.5: windows that are opened byte by byte are a flood": (
        "floods: windows_that_are_opened_byte_by_byte_are_a_flood"
    ),
}

FILES = {
    "statements": "test_http2_statements.py",
    "h2": "test_http_h2.py",
    "errors": "test_http_h2_errors.py",
    "floods": "test_http_h2_floods.py",
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_each_statement_has_its_test(statement: str) -> None:
    where, name = STATEMENTS[statement].split(": ")
    text = (Path(__file__).parent / FILES[where]).read_text("utf-8")
    assert re.search(rf"^(async )?def test_{name}\(", text, re.MULTILINE)


def test_unknown_frames_settings_and_flags_are_passed_over() -> None:
    gateway = Gateway()
    fields = [(":method", "GET"), (":scheme", "http"), (":authority", "h"), (":path", "/topics")]
    get = bytearray(HeadersFrame(1, data=Encoder().encode(fields), flags=["END_HEADERS", "END_STREAM"]).serialize())
    get[4] |= 0x40
    unknown = b"\0\0\4\xbb\xff\0\0\0\0abcd"
    settings = SettingsFrame(0, settings={0xABCD: 5}).serialize()
    out = gateway.feed(PREFACE + settings + unknown + bytes(get) + unknown)
    frames, at = [], 0
    while at < len(out):
        frames.append(out[at + 3])
        at += 9 + int.from_bytes(out[at : at + 3], "big")
    assert 1 in frames  # HEADERS: it is answered
    assert not {3, 7} & {*frames}  # RST_STREAM, GOAWAY
