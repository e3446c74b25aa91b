"""`headgate dashboard`: whose passwords log in, and what it refuses before it listens."""

import pytest
from typer.testing import CliRunner

from gateway.cli import commands as cli
from gateway.cli.dashboard import check_of
from gateway.cli.spark import SparkFailed
from gateway.security.passwords import hash_password
from store.base.process_errors import HeadgateError


def test_users_with_a_password_or_a_hash_of_one_log_in(tmp_path):
    (tmp_path / "alice").write_text("s3cret")
    config = tmp_path / "headgate.toml"
    config.write_text(
        f'[auth.users.alice]\npassword_file = "{tmp_path / "alice"}"\n'
        f"[auth.users.bob]\npassword_hash = '{hash_password(b'other')}'\n"
    )
    check = check_of(config, cli._load)
    assert check("alice", b"s3cret")
    assert check("bob", b"other")
    assert not check("alice", b"other")
    assert not check("bob", b"")
    assert not check("carol", b"s3cret")
    assert not check("alice", b"s3cret" + b"x" * 2_000)


def test_a_configuration_without_users_is_refused(tmp_path):
    config = tmp_path / "headgate.toml"
    config.write_text("")
    with pytest.raises(SparkFailed, match=r"no \[auth\.users\] with a password"):
        check_of(config, cli._load)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "option host cannot be 0.0.0.0 without users"),
        (["--port", "65535", "--port-offset", "5"], "option port-offset cannot be 5: port 65535 would be 65540"),
        (["--tables", "ftp://host/x"], "option tables cannot be ftp://host/x"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments, said):
    pytest.importorskip("duckdb")
    pytest.importorskip("dash_mantine_components")
    pytest.importorskip("deltalake")
    found = CliRunner().invoke(cli.app, ["dashboard", *arguments])
    assert isinstance(found.exception, HeadgateError)
    assert said in str(found.exception)
