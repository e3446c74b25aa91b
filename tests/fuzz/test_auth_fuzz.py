"""Mangles the credentials of strangers: words of SCRAM, tokens and certificates. They are refused, nothing else."""

import contextlib
import random

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from scramp import ScramClient

from gateway.domain.errors import Cause, Refusal
from gateway.domain.identity import identity_of, is_name
from gateway.security.auth_settings import JwtConfig, JwtKey
from gateway.security.scram import MECHANISM, ScramExchange, Verifier, derive
from gateway.security.tokens import Tokens

VERIFIER = derive("pencil", salt=b"0123456789abcdef", iterations=4_096)
NOW_MS = 1_700_000_000_000
BYTES = b"n=,ry p\x00\xff\xc3\xa9m\xed\xa0\x80\xef\xb7\xba/+#"


def mangled(chance: random.Random, data: bytes) -> bytes:
    """Returns bytes with some changed, removed, inserted or repeated."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(4):
            case 0:
                out[at : at + 1] = bytes((chance.choice(BYTES),))
            case 1:
                del out[at : at + chance.randint(1, 5)]
            case 2:
                out[at:at] = bytes(chance.choice(BYTES) for _ in range(chance.randint(1, 6)))
            case _:
                out[at:at] = out[chance.randrange(len(out) + 1) :][:40]
    return bytes(out)


def say(exchange, words):
    for word in words:
        exchange.step(word)


@pytest.mark.parametrize("seed", range(20))
def test_mangled_words_of_scram_prove_nothing(seed):
    chance = random.Random(seed)
    for _ in range(100):
        client = ScramClient([MECHANISM], "user", "pencil", c_nonce="c" * 24)
        exchange = ScramExchange(lambda name: VERIFIER, nonce="s" * 24)
        first = client.get_client_first().encode()
        if chance.random() < 0.5:
            words = [mangled(chance, first), mangled(chance, b"c=biws,r=x,p=AAAA")]
        else:
            client.set_server_first(exchange.step(first).decode())
            right = client.get_client_final().encode()
            words = [mangled(chance, right)]
            if words == [right]:
                continue
        with pytest.raises(Refusal, match=r"\Awrong name or password\Z") as refused:
            say(exchange, words)
        assert refused.value.cause is Cause.UNAUTHENTICATED


@pytest.mark.parametrize("seed", range(10))
def test_a_mangled_verifier_is_one_or_a_mistake(seed):
    chance = random.Random(seed)
    for _ in range(200):
        with contextlib.suppress(ValueError):
            verifier = Verifier.parse(mangled(chance, str(VERIFIER).encode()).decode(errors="replace"))
            assert Verifier.parse(str(verifier)) == verifier


def test_names_in_certificates():
    chance = random.Random(1)
    for _ in range(500):
        value = mangled(chance, b"device-7").decode(errors="replace")
        found = identity_of({"subject": ((("commonName", value),),)}, "cn")
        assert found is None or (found == value and is_name(found))


@pytest.mark.parametrize("seed", range(10))
def test_a_mangled_token_says_nothing_else(seed, tmp_path):
    chance = random.Random(seed)
    signer = Ed25519PrivateKey.from_private_bytes(bytes(32))
    file = tmp_path / "key"
    file.write_bytes(signer.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    tokens = Tokens(JwtConfig(keys=(JwtKey(file=file, algorithm="EdDSA"),)))
    right = jwt.encode({"sub": "fleet", "exp": 2_000_000_000}, signer, algorithm="EdDSA").encode()
    for _ in range(200):
        given = mangled(chance, right)
        with contextlib.suppress(Refusal):
            assert tokens.verify(given, now_ms=NOW_MS).name == "fleet"
            assert given.rstrip(b"=") == right, "padding is all that may differ"
