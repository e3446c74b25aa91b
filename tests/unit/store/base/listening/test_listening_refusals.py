"""Connections that are refused are logged with their address and the reason, and seldom."""

import logging
import ssl

import pytest

from store.base.listening.refusals import AGAIN_S, KINDS_MAX, NotAdmitted, NotServed, Refusals, why_refused


def expired():
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "certificate has expired"
    return error


def of_tls(reason):
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]


def test_a_peer_and_a_reason_are_logged_once_in_a_while(warnings):
    """They were logged at level info three times a second, without the address and some without a reason."""
    now_s = 0.0
    refusals = Refusals(lambda: now_s)
    for _ in range(5):
        refusals.note("10.0.0.9", expired(), secure=True)
    line = "a connection from 10.0.0.9 is refused: its certificate is not accepted (certificate has expired)"
    assert warnings() == [f"{line}; see cluster.tls.ca_file"]
    refusals.note("10.0.0.8", expired(), secure=True)
    refusals.note("10.0.0.9", ConnectionResetError(), secure=True)
    assert len(warnings()) == 3
    now_s = AGAIN_S
    refusals.note("10.0.0.9", expired(), secure=True)
    assert warnings()[3:] == [f"{line}; see cluster.tls.ca_file, and 4 more since the line before"]


def test_many_peers_take_little_memory(warnings):
    refusals = Refusals(lambda: 0.0)
    for n in range(KINDS_MAX + 10):
        refusals.note(f"10.0.{n // 256}.{n % 256}", expired(), secure=True)
    assert len(refusals._logged) == len(refusals._more) == KINDS_MAX
    assert len(warnings()) == KINDS_MAX + 10


def test_each_fault_of_tls_has_a_sentence(warnings):
    assert "it does not speak TLS" in why_refused(of_tls("WRONG_VERSION_NUMBER"))
    assert "it has shown no certificate" in why_refused(of_tls("PEER_DID_NOT_RETURN_A_CERTIFICATE"))
    assert "does not accept the certificate of this node" in why_refused(of_tls("TLSV1_ALERT_UNKNOWN_CA"))
    assert why_refused(of_tls("NO_SHARED_CIPHER")) == "the TLS handshake has failed (no shared cipher)"
    refusals = Refusals(lambda: 0.0)
    refusals.note("10.0.0.9", BrokenPipeError(32, "Broken pipe"), secure=True)
    refusals.note("10.0.0.9", ConnectionResetError(), secure=False)
    assert warnings() == []


def test_what_is_no_refusal_is_logged_as_seldom_and_no_warning(warnings, caplog):
    refusals = Refusals(lambda: 0.0)
    for _ in range(3):
        refusals.note("10.0.0.9", NotAdmitted(), secure=True)
        refusals.note("10.0.0.9", OSError(), secure=False)
        refusals.note("10.0.0.9", NotServed("there is no file"), secure=False)
    infos = [line.getMessage() for line in caplog.records if line.levelno == logging.INFO]
    assert [line.partition(": ")[0] for line in infos] == ["a connection from 10.0.0.9 was not established"] * 2
    assert infos[1].endswith(": OSError")
    assert warnings() == ["a connection from 10.0.0.9 is refused: there is no file"]
