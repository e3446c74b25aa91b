"""Tokens: who signed them, for whom, until when; and everything that is none."""

import json
from base64 import urlsafe_b64encode

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm

from gateway.domain.errors import Cause, Refusal
from gateway.domain.identity import Claim
from gateway.security.auth_settings import JwtConfig, JwtKey
from gateway.security.tokens import LOOK_INTERVAL_MS, TOKEN_BYTES_MAX, Tokens
from store.base.process_errors import ConfigError

NOW_S = 1_700_000_000
NOW_MS = NOW_S * 1000
EC, OTHER_EC, P384 = (ec.generate_private_key(curve) for curve in (ec.SECP256R1(), ec.SECP256R1(), ec.SECP384R1()))
RSA = rsa.generate_private_key(65_537, 2_048)
ED = ed25519.Ed25519PrivateKey.generate()
SHARED = b"0123456789abcdef0123456789abcdef"


def public(key):
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def jwk(algorithm, key, **members):
    return {**json.loads(algorithm.to_jwk(key)), **members}


KEY_SET = [
    jwk(ECAlgorithm, EC.public_key(), kid="ec", use="sig"),
    jwk(RSAAlgorithm, RSA.public_key(), kid="rsa", alg="RS256"),
    jwk(OKPAlgorithm, ED.public_key(), kid="ed", key_ops=["verify"]),
]


@pytest.fixture
def tokens(tmp_path):
    """Returns a function that makes tokens, which the keys of a set verify, or as a configuration says."""

    def made(*, keys=None, **said):
        file = tmp_path / "jwks.json"
        file.write_text(json.dumps({"keys": KEY_SET if keys is None else keys}))
        return Tokens(JwtConfig(jwks_file=file, **said))

    return made


def token(key=EC, algorithm="ES256", kid=None, header=None, **claims):
    claims = {"sub": "fleet", "exp": NOW_S + 60, **claims}
    claims = {name: value for name, value in claims.items() if value is not ...}
    headers = {**({} if kid is None else {"kid": kid}), **(header or {})}
    return jwt.encode(claims, key, algorithm=algorithm, headers=headers).encode()


def part(value):
    return urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


def refused(subject, given, *, now_ms=NOW_MS):
    with pytest.raises(Refusal) as caught:
        subject.verify(given, now_ms=now_ms)
    assert caught.value.cause is Cause.UNAUTHENTICATED
    return caught.value.detail


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [(EC, "ES256", "ec"), (EC, "ES256", None), (RSA, "RS256", "rsa"), (ED, "EdDSA", "ed"), (ED, "EdDSA", None)],
)
def test_a_token_names_its_bearer(tokens, key, algorithm, kid):
    found = tokens().verify(token(key, algorithm, kid), now_ms=NOW_MS)
    assert found == Claim("fleet", "fleet", (NOW_S + 70) * 1000)  # with the leeway


def test_time(tokens):
    subject = tokens(leeway_s=10)
    assert subject.verify(token(exp=NOW_S - 9), now_ms=NOW_MS).expires_at_ms == NOW_MS + 1_000
    assert refused(subject, token(exp=NOW_S - 10)) == "the token has expired"
    assert subject.verify(token(nbf=NOW_S + 10), now_ms=NOW_MS)
    assert refused(subject, token(nbf=NOW_S + 11)) == "the token is not good yet"
    assert subject.verify(token(nbf=NOW_S + 11), now_ms=NOW_MS + 1_000)
    assert subject.verify(token(exp=NOW_S + 0.5), now_ms=NOW_MS).expires_at_ms == NOW_MS + 10_500
    assert subject.verify(token(iat=NOW_S + 1_000), now_ms=NOW_MS), "when it was issued is for information"


@pytest.mark.parametrize("value", [None, "soon", "1800000000", True, -1, 1e300, [], {}])
def test_times_that_are_none(tokens, value):
    assert refused(tokens(), token(exp=value))
    if value is not None:
        assert refused(tokens(), token(nbf=value))


def test_a_token_without_an_end_is_refused(tokens):
    assert refused(tokens(), token(exp=...)) == "the token does not say 'exp'"


def test_whose_it_is_and_for_whom(tokens):
    assert refused(tokens(), token(aud="others")) == "the token is for another audience"
    subject = tokens(issuer=("https://a", "https://b"), audience=("headgate", "iot"))
    good = {"iss": "https://b", "aud": ["x", "iot"]}
    assert subject.verify(token(**good), now_ms=NOW_MS).name == "fleet"
    assert refused(subject, token(**{**good, "iss": "https://c"})) == "the token is of an unknown issuer"
    assert refused(subject, token(**{**good, "aud": "x"})) == "the token is for another audience"
    for missing in ("iss", "aud"):
        assert refused(subject, token(**{**good, missing: ...})) == f"the token does not say {missing!r}"
    for odd in (7, {"a": 1}, [1]):
        assert refused(subject, token(**{**good, "aud": odd}))


def test_claims_that_name(tokens):
    subject = tokens(username_claim="client", device_claim="device")
    found = subject.verify(token(client="fleet", device="d7"), now_ms=NOW_MS)
    assert (found.name, found.device) == ("fleet", "d7")
    for claims in ({"client": "fleet"}, {"device": "d7"}, {"client": 7, "device": "d7"}, {"client": "", "device": "d"}):
        assert refused(subject, token(**claims)) == "the token does not name its bearer"
    for odd in ("a\nb", "a\0b", "x" * 256, "\ud800"):
        assert refused(subject, token(client=odd, device="d7"))
        assert refused(subject, token(client="fleet", device=odd))


def test_keys_of_others(tokens):
    said = "the token is signed with a key that is not known here"
    assert refused(tokens(), token(OTHER_EC)) == said
    assert refused(tokens(), token(kid="rsa")) == said, "a key is good for its own tokens"
    assert refused(tokens(), token(kid="unknown")) == said
    assert refused(tokens(), token(P384, "ES384")) == said


def test_algorithms_are_those_of_the_keys(tokens):
    nobody = [part({"alg": "none", "typ": "JWT"}), part({"sub": "fleet", "exp": NOW_S + 60}), b""]
    assert refused(tokens(), b".".join(nobody))
    # The public key taken for a shared secret: what an algorithm of the token's own choice would allow (RFC 8725, 2.1).
    forged = jwt.api_jws.PyJWS()
    body = json.dumps({"sub": "fleet", "exp": NOW_S + 60}).encode()
    HMACAlgorithm.prepare_key, kept = lambda self, key: key, HMACAlgorithm.prepare_key
    try:
        for pem in (public(EC), public(RSA)):
            assert refused(tokens(), forged.encode(body, pem, "HS256").encode())
    finally:
        HMACAlgorithm.prepare_key = kept
    assert refused(tokens(algorithms=("RS256",)), token())
    assert refused(tokens(), token(RSA, "RS512", "rsa")), "the set says RS256"
    assert refused(tokens(), token(RSA, "PS256", "rsa"))


def test_a_shared_secret_has_to_be_asked_for(tokens):
    keys = [*KEY_SET, jwk(HMACAlgorithm, SHARED, kid="shared")]
    given = token(SHARED, "HS256", "shared")
    assert refused(tokens(keys=keys), given)
    assert tokens(keys=keys, algorithms=("HS256",)).verify(given, now_ms=NOW_MS).name == "fleet"
    with pytest.raises(ConfigError):
        tokens(keys=[jwk(HMACAlgorithm, b"short", kid="shared")], algorithms=("HS256",))


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"..",
        b"eyJ.eyJ.x",
        b"eyJhbGciOiJFUzI1NiJ9..",
        b"a.b",
        b"a.b.c.d",
        b"\xff.\xff.\xff",
        b"eyJ" + b"A" * TOKEN_BYTES_MAX,
        part({"alg": "ES256", "crit": ["exp"]}) + b".e30.AA",
        part({"alg": "ES256", "b64": False, "crit": ["b64"]}) + b"..AA",
        part({"alg": ["ES256"]}) + b".e30.AA",
        part({"alg": {"a": 1}, "kid": 7}) + b".e30.AA",
        part(["ES256"]) + b".e30.AA",
        b"[" * 8_000,
    ],
)
def test_what_is_no_token(tokens, given):
    assert refused(tokens(), given).startswith("the token ")


def test_claims_that_are_no_object(tokens):
    given = jwt.api_jws.PyJWS().encode(b"[1]", EC, "ES256").encode()
    assert refused(tokens(), given)


# ---- keys in files


@pytest.mark.parametrize(
    ("algorithm", "content", "signer"),
    [
        ("ES256", public(EC), EC),
        ("EdDSA", public(ED), ED),
        ("RS256", public(RSA), RSA),
        ("PS256", public(RSA), RSA),
        ("HS256", SHARED + b"\n", SHARED),
    ],
)
def test_a_key_in_a_file(tmp_path, algorithm, content, signer):
    file = tmp_path / "key"
    file.write_bytes(content)
    subject = Tokens(JwtConfig(keys=(JwtKey(file=file, algorithm=algorithm, id="k"),)))
    assert subject.verify(token(signer, algorithm), now_ms=NOW_MS).name == "fleet"
    assert subject.verify(token(signer, algorithm, "k"), now_ms=NOW_MS).name == "fleet"
    assert refused(subject, token(signer, algorithm, "other"))


@pytest.mark.parametrize(
    ("algorithm", "content"),
    [
        ("ES256", b""),
        ("ES256", b"no PEM"),
        ("ES256", public(RSA)),
        ("ES256", public(P384)),
        ("RS256", public(EC)),
        ("HS256", b"too short"),
        ("HS256", public(EC)),
        (
            "ES256",
            EC.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        ),
    ],
)
def test_a_file_that_has_no_such_key(tmp_path, algorithm, content):
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"auth\.jwt\.keys\[0\]\.file") as caught:
        Tokens(JwtConfig(keys=(JwtKey(file=file, algorithm=algorithm),)))
    assert "short" not in str(caught.value).split("key is")[0]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"keys": {}}', '{"keys": []}', '{"keys": [1, {"kty": "EC"}, {"kty": "oct"}]}', "[" * 5_000],
)
def test_a_file_that_is_no_set_of_keys(tmp_path, content):
    file = tmp_path / "jwks.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"auth\.jwt\.jwks_file"):
        Tokens(JwtConfig(jwks_file=file))


def test_keys_that_are_for_something_else_are_left_out(tokens):
    for members in ({"use": "enc"}, {"key_ops": ["sign"]}, {"key_ops": "verify"}, {"kid": 7}):
        with pytest.raises(ConfigError):
            tokens(keys=[jwk(ECAlgorithm, EC.public_key(), **members)])
    small = rsa.generate_private_key(65_537, 1_024)
    with pytest.raises(ConfigError):
        tokens(keys=[jwk(RSAAlgorithm, small.public_key())])


def test_a_file_is_read_again_when_it_changes(tokens, tmp_path):
    subject, file = tokens(), tmp_path / "jwks.json"
    assert subject.verify(token(), now_ms=NOW_MS)

    def replace(text):
        new = tmp_path / "new"
        new.write_text(text)
        new.replace(file)

    replace(json.dumps({"keys": [jwk(ECAlgorithm, OTHER_EC.public_key())]}))
    assert subject.verify(token(), now_ms=NOW_MS + LOOK_INTERVAL_MS - 1), "it is not looked at each time"
    later = NOW_MS + LOOK_INTERVAL_MS
    assert refused(subject, token(), now_ms=later)
    assert subject.verify(token(OTHER_EC), now_ms=later)
    replace("half writ")
    assert subject.verify(token(OTHER_EC), now_ms=later + LOOK_INTERVAL_MS), "the keys of before stay in force"
    file.unlink()
    assert subject.verify(token(OTHER_EC), now_ms=later + 2 * LOOK_INTERVAL_MS)
    replace(json.dumps({"keys": KEY_SET}))
    assert subject.verify(token(), now_ms=later + 3 * LOOK_INTERVAL_MS)


def test_keys_that_could_not_be_read_once_are_read_when_they_can_be(tokens, tmp_path, monkeypatch):
    """A file whose mode is set right later does not change otherwise: keys of before stayed good for ever."""
    subject = tokens()
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [jwk(ECAlgorithm, OTHER_EC.public_key())]}))

    def fails():
        raise ConfigError("auth.jwt.jwks_file: Permission denied")

    later = NOW_MS + LOOK_INTERVAL_MS
    with monkeypatch.context() as patched:
        patched.setattr(subject, "_load", fails)
        assert subject.verify(token(), now_ms=later)
    assert refused(subject, token(), now_ms=later + LOOK_INTERVAL_MS)
    assert subject.verify(token(OTHER_EC), now_ms=later + LOOK_INTERVAL_MS)
