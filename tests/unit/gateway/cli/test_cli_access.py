"""`headgate access check`, and the rules of `headgate cluster users`."""

import asyncio

import pytest
from typer.testing import CliRunner

from controller.api.client import User
from controller.api.commands import DeleteUser, SetUser
from gateway.cli.cluster import access as cli_access
from gateway.cli.cluster import users as cli_users
from gateway.cli.commands import app
from gateway.domain.access import AccessRules, Identity
from gateway.domain.access_settings import AccessConfig, own_access
from store.base.process_errors import ConfigError

CONFIG = """
[access]
default = "deny"
[[access.rules]]
effect = "allow"
filters = ["devices/${client_id}/#"]
users = ["*"]
[[access.rules]]
effect = "deny"
actions = ["publish"]
filters = ["devices/+/firmware"]
"""


class UsersController:
    """Users, as the controllers keep them."""

    def __init__(self):
        self.found = {}
        self.behind = {}  # entries that are known here only after a barrier

    async def barrier(self):
        self.found |= self.behind

    def users(self):
        return list(self.found.values())

    def user(self, name):
        return self.found.get(name)

    async def do(self, command):
        match command:
            case SetUser():
                self.found[command.user.name] = command.user
            case DeleteUser():
                del self.found[command.name]


@pytest.fixture
def controller(monkeypatch):
    found = UsersController()
    for module, name in ((cli_users, "ask"), (cli_access, "ask_of")):
        monkeypatch.setattr(module, name, lambda _cluster, _controllers, work: asyncio.run(asked(found, work)))
    return found


async def asked(controller, work):
    return await work(controller)


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "headgate.toml"
    file.write_text(CONFIG)
    return file


def run(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.mark.parametrize(
    ("asked_", "code", "said"),
    [
        (["publish", "devices/c1/x"], 0, "allowed: access.rules[0]: allow all devices/${client_id}/#"),
        (["publish", "devices/c1/firmware"], 1, "denied: access.rules[1]: deny publish devices/+/firmware"),
        (["subscribe", "devices/c1/firmware"], 0, "allowed: access.rules[0]"),
        (["subscribe", "devices/#"], 0, "allowed: some"),
        (["subscribe", "other/#"], 1, "denied: none"),
        (["manage", "$queue/q"], 1, "denied: no rule speaks of it"),
    ],
)
def test_check_says_which_rule_decides(config, asked_, code, said):
    found = run("access", "check", *asked_, "--user", "ada", "--client-id", "c1", "-c", config)
    assert found.exit_code == code
    assert found.stdout.startswith(said)


def test_check_of_a_client_that_nothing_restricts(tmp_path):
    file = tmp_path / "empty.toml"
    file.write_text("")
    found = run("access", "check", "publish", "a", "-c", file)
    assert (found.exit_code, found.stdout) == (0, "allowed: no rule restricts this client\n")


def test_check_of_a_user_of_the_cluster(config, controller):
    run("cluster", "users", "set", "ada", "--password-file", secret(config), "--allow", "publish:own/#")
    found = run("access", "check", "publish", "own/x", "--user", "ada", "--controllers", "c1:1", "-c", config)
    assert found.stdout == "allowed: rule 0 of user ada: allow publish own/#\n"


def test_an_action_that_is_none(config):
    assert isinstance(run("access", "check", "fly", "a", "-c", config).exception, ConfigError)


def secret(config):
    file = config.with_name("password")
    file.write_text("a long secret\n")
    return file


def test_rules_of_users(config, controller):
    allow = ["--allow", "publish,subscribe:a/#", "--allow", "manage:$queue/+", "--deny", "all:a/b"]
    assert run("cluster", "users", "set", "ada", "--password-file", secret(config), *allow).exit_code == 0
    user = controller.user("ada")
    own = own_access(user.rights["access"])
    access = AccessRules(AccessConfig()).access(Identity(name="ada"), own)
    assert access.may("publish", "a/x")
    assert not access.may("publish", "a/b")
    assert access.may("manage", "$queue/q")
    assert not access.may("publish", "c")
    shown = "--allow publish,subscribe:a/#\n--allow manage:$queue/+\n--deny all:a/b\n--otherwise deny\n"
    assert run("cluster", "users", "rules", "ada").stdout == shown
    assert run("cluster", "users", "list").stdout == "ada (rules)\n"


def test_another_password_leaves_the_rules_as_they_are(config, controller):
    file = secret(config)
    run("cluster", "users", "set", "ada", "--password-file", file, "--trusted-gateway", "--allow", "all:a")
    before = controller.user("ada")
    said = run("cluster", "users", "set", "ada", "--password-file", file).stdout
    assert said == "user ada is set; it may not speak for other devices any more: --trusted-gateway\n"
    assert run("cluster", "users", "set", "ada", "--password-file", file).stdout == "user ada is set\n"
    after = controller.user("ada")
    assert after.password != before.password
    assert after.rights["access"] == before.rights["access"]
    assert after.rights["trusted_gateway"] is False


def test_other_rules_leave_the_password_as_it_is(config, controller):
    run("cluster", "users", "set", "ada", "--password-file", secret(config), "--trusted-gateway")
    before = controller.user("ada")
    assert run("cluster", "users", "rules", "ada").stdout == "no rules of its own\n"
    assert controller.user("ada") == before
    assert run("cluster", "users", "rules", "ada", "--deny", "all:a").stdout == "--deny all:a\n--otherwise allow\n"
    after = controller.user("ada")
    assert after.password == before.password
    assert after.rights["trusted_gateway"] is True
    run("cluster", "users", "rules", "ada", "--otherwise", "deny")
    assert controller.user("ada").rights["access"] == {"otherwise": "deny", "rules": []}
    assert run("cluster", "users", "rules", "ada", "--none").stdout == "no rules of its own\n"
    assert controller.user("ada") == before


@pytest.mark.parametrize(
    "options",
    [
        ["--allow", "fly:a"],
        ["--allow", "a"],
        ["--deny", "all:a/#/b"],
        ["--otherwise", "perhaps"],
        ["--none", "--deny", "all:a"],
    ],
)
def test_rules_that_are_none_change_nothing(controller, options):
    controller.found["ada"] = User(name="ada", password="x")
    assert isinstance(run("cluster", "users", "rules", "ada", *options).exception, ConfigError)
    assert controller.user("ada") == User(name="ada", password="x")


def test_an_action_that_is_none_is_named(controller):
    controller.found["ada"] = User(name="ada", password="x")
    said = str(run("cluster", "users", "rules", "ada", "--allow", "fly:x/#").exception)
    assert said == "'fly:x/#': 'fly' is no action; write some of publish, subscribe, manage, or all"


def test_rules_for_nobody(controller):
    assert isinstance(run("cluster", "users", "rules", "ada", "--deny", "all:a").exception, ConfigError)


def test_what_is_kept_of_a_user_is_what_the_controllers_know_and_not_what_one_of_them_knew(config, controller):
    rights = {"access": {"otherwise": "deny", "rules": []}}
    controller.behind = {"ada": User(name="ada", password="", rights=rights)}
    assert run("cluster", "users", "set", "ada", "--password-file", secret(config)).exit_code == 0
    assert controller.found["ada"].rights["access"] == rights["access"]
    controller.behind = {"bob": User(name="bob", password="")}
    assert run("cluster", "users", "rules", "bob", "--allow", "all:b/#").exit_code == 0
    assert run("cluster", "users", "remove", "bob").exit_code == 0


def test_a_user_that_is_not_there_is_not_removed(controller):
    assert "there is no user nobody" in str(run("cluster", "users", "remove", "nobody").exception)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "NAME: has 0 bytes; write a name of 1 to 255"),
        ("\u00e4" * 128, "NAME: has 256 bytes"),
        ("ada\n", "NAME: has a control character"),
        ("a\x7fda", "NAME: has a control character"),
        ("a\x85da", "NAME: has a control character"),
        ("a\udcffda", "NAME: is not UTF-8"),
    ],
)
def test_names_that_no_user_may_have(config, controller, name, said):
    tried = run("cluster", "users", "set", name, "--password-file", secret(config))
    assert isinstance(tried.exception, ConfigError)
    assert said in str(tried.exception)
    assert controller.found == {}


@pytest.mark.parametrize("name", ["x" * 255, "Grace Hopper", "\u00e4da@example.com"])
def test_names_that_a_user_may_have(config, controller, name):
    assert run("cluster", "users", "set", name, "--password-file", secret(config)).exit_code == 0
    assert list(controller.found) == [name]


def test_rights_by_name_are_said_too(config, controller):
    """Those of users that were imported from RabbitMQ, which are no rules of ours."""
    rights = {
        "access": {"otherwise": "deny", "vhosts": [{"vhost": "/", "configure": "", "write": "", "read": "orders"}]}
    }
    controller.found["carl"] = User(name="carl", password="", rights=rights)
    args = ["access", "check", "subscribe", "$queue/orders", "--user", "carl", "--protocol", "amqp"]
    said = CliRunner().invoke(app, [*args, "--config", str(config), "--controllers", "c:1"])
    assert (said.exit_code, said.output) == (0, "allowed: vhost '/' of user carl\n")


@pytest.mark.parametrize("there", ["the file of the directory", "--config", "the environment"])
def test_the_controllers_of_the_configuration_are_asked(tmp_path, monkeypatch, there):
    """Only those of `--config` were; for other configurations this machine was asked, or another cluster there."""
    named = []

    async def asked_of(addresses, _work, *, credentials):
        named.append((addresses, credentials))

    monkeypatch.setattr("gateway.operating.asking.asked", asked_of)
    monkeypatch.chdir(tmp_path)
    args = ["access", "check", "publish", "a", "--user", "bob"]
    if there == "the environment":
        monkeypatch.setenv("HEADGATE__CLUSTER__CONTROLLERS", '{"1": "n1:8082"}')
    else:
        file = tmp_path / ("headgate.toml" if there != "--config" else "other.toml")
        file.write_text("[cluster]\ncontrollers = { 1 = 'n1:8082' }\n")
        args += ["--config", str(file)] if there == "--config" else []
    assert CliRunner().invoke(app, args).exit_code == 0
    assert CliRunner().invoke(app, [*args, "--controllers", "n9:1"]).exit_code == 0
    assert named == [(["n1:8082"], None), (["n9:1"], None)]
