"""Hashes that RabbitMQ has made, and those that are none."""

import base64
import hashlib

import pytest

from gateway.security import rabbitmq_hashes
from gateway.security.passwords import Passwords, check_hash, is_match
from gateway.security.rabbitmq_hashes import rabbitmq_hash

# Of RabbitMQ 3.10.8: `rabbitmqctl add_user app s3cret`, exported.
REAL = "o7RY2jrri86TTYdLjdlMlXfrD3L5iCriGBoswAhIqTcfcyGO"


def test_a_real_hash_is_of_its_password_alone():
    hashed = rabbitmq_hash("rabbit_password_hashing_sha256", REAL)
    check_hash(hashed)
    assert is_match(hashed, b"s3cret")
    assert not is_match(hashed, b"s3cre")
    assert not is_match(hashed, b"")


def test_sha512_is_taken_too():
    salt = b"\x01\x02\x03\x04"
    encoded = base64.b64encode(salt + hashlib.sha512(salt + b"pass").digest()).decode()
    hashed = rabbitmq_hash("rabbit_password_hashing_sha512", encoded)
    assert is_match(hashed, b"pass")
    assert not is_match(hashed, b"other")


def test_an_empty_password_matches_nothing():
    encoded = base64.b64encode(b"salt" + hashlib.sha256(b"salt").digest()).decode()
    assert not is_match(rabbitmq_hash("rabbit_password_hashing_sha256", encoded), b"")


@pytest.mark.parametrize(
    ("algorithm", "encoded"),
    [
        ("rabbit_password_hashing_md5", REAL),
        ("sha1", REAL),
        ("sha256", "short"),
        ("sha256", "ä" * 48),
        ("sha512", REAL),
    ],
)
def test_what_is_no_hash_is_refused(algorithm, encoded):
    with pytest.raises(ValueError, match="hash"):
        rabbitmq_hash(algorithm, encoded)
    assert not rabbitmq_hashes.is_match(f"{rabbitmq_hashes.PREFIX}{algorithm}${encoded}", b"s3cret")


@pytest.mark.anyio
async def test_logins_compare_it():
    passwords = Passwords()
    hashed = rabbitmq_hash("rabbit_password_hashing_sha256", REAL)
    assert await passwords.verify(hashed, b"s3cret")
    assert not await passwords.verify(hashed, b"wrong")
