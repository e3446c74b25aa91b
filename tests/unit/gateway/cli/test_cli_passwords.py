import pytest
from typer.testing import CliRunner

from gateway.cli import commands as cli
from gateway.config.config import load
from gateway.config.listing import listing
from gateway.security.passwords import check_hash, verifier_in
from store.base.process_errors import ConfigError


def test_a_hash_is_printed_that_the_configuration_takes(tmp_path):
    file = tmp_path / "password"
    file.write_bytes(b"pencil\r\n")
    made = CliRunner().invoke(cli.app, ["hash-password", "--password-file", str(file)])
    hashed = made.output.removesuffix("\n")
    check_hash(hashed)
    assert verifier_in(hashed).admits(b"pencil")
    config = tmp_path / "headgate.toml"
    config.write_text(f'[auth.users.bob]\npassword_hash = "{hashed}"\n')
    settings = load(config, {}, factories={})
    assert settings.auth.users["bob"].password_hash.reveal() == hashed
    shown = "\n".join(listing(settings))
    assert "auth.users.bob.password_hash = ***" in shown
    assert hashed.split("$")[-1] not in shown + repr(settings)


def test_a_password_is_asked_for_twice():
    made = CliRunner().invoke(cli.app, ["hash-password"], input="pencil\npencil\n")
    assert verifier_in(made.stdout).admits(b"pencil")
    assert "pencil" not in made.output


def test_a_password_that_is_none(tmp_path):
    file = tmp_path / "password"
    file.write_bytes(b"\n")
    made = CliRunner().invoke(cli.app, ["hash-password", "--password-file", str(file)])
    assert isinstance(made.exception, ConfigError)


@pytest.mark.parametrize("hashed", ["sesame", "$argon2id$sesame", "SCRAM-SHA-256$sesame"])
def test_a_mistake_does_not_repeat_what_was_written(tmp_path, hashed):
    config = tmp_path / "headgate.toml"
    config.write_text(f'[auth.users.bob]\npassword_hash = "{hashed}"\n')
    with pytest.raises(ConfigError) as caught:
        load(config, {}, factories={})
    assert "sesame" not in str(caught.value)
