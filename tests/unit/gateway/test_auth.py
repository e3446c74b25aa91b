import pytest

from gateway.auth import Authenticator
from gateway.config import AuthConfig, UserConfig
from gateway.config_reader import Secret
from gateway.errors import Cause, Refusal
from gateway.port import Authenticate, Principal

CONFIG = AuthConfig(users={"bridge": UserConfig(password=Secret("s3cret"), trusted_gateway=True)})


def ask(username, password, config=CONFIG, *, loopback=True, mechanism="password"):
    request = Authenticate(mechanism=mechanism, username=username, password=password)
    return Authenticator(config).authenticate(request, loopback=loopback)


def test_a_user_is_admitted_by_the_password_from_anywhere():
    assert ask("bridge", b"s3cret", loopback=False) == Principal(name="bridge", trusted_gateway=True)


@pytest.mark.parametrize("password", [b"", b"S3cret", b"Secret(***)", str(Secret("s3cret")).encode(), b"s3cret\0"])
def test_any_other_password_is_refused(password):
    with pytest.raises(Refusal) as refused:
        ask("bridge", password)
    assert refused.value.cause is Cause.UNAUTHENTICATED


def test_an_unknown_name_and_a_wrong_password_sound_the_same():
    with pytest.raises(Refusal) as unknown:
        ask("nobody", b"x")
    with pytest.raises(Refusal) as wrong:
        ask("bridge", b"x")
    assert str(unknown.value) == str(wrong.value)


@pytest.mark.parametrize(
    ("rule", "loopback", "admitted"),
    [("loopback", True, True), ("loopback", False, False), ("everyone", False, True), ("nobody", True, False)],
)
def test_guests_and_the_nameless_are_admitted_by_their_rules(rule, loopback, admitted):
    config = AuthConfig(anonymous=rule, guest=rule)
    for username, password, mechanism in (("guest", b"guest", "password"), ("", b"", "anonymous")):
        if admitted:
            assert ask(username, password, config, loopback=loopback, mechanism=mechanism).name == username
        else:
            with pytest.raises(Refusal):
                ask(username, password, config, loopback=loopback, mechanism=mechanism)


def test_a_configured_guest_needs_the_configured_password():
    config = AuthConfig(users={"guest": UserConfig(password=Secret("other"))})
    with pytest.raises(Refusal):
        ask("guest", b"guest", config)
