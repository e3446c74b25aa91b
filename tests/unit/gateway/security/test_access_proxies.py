"""Rules of the cluster's users, at proxies: each has them from the controllers, and hears when they change."""

import pytest

from controller.api.client import User
from controller.api.commands import DeleteUser, SetUser
from gateway.domain.access_settings import AccessConfig
from gateway.domain.principal import Principal
from gateway.ops.metrics import Metrics
from gateway.security.access_control import AccessControl
from tests.support.controller.controllers import Controllers
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio

ALLOW_A = {"effect": "allow", "filters": ["a/#"]}
DENY_B = {"effect": "deny", "filters": ["a/b"]}


def user(*rules):
    return User(name="ada", password="x", rights={"access": {"otherwise": "deny", "rules": list(rules)}})


async def test_rules_that_change_count_at_all_proxies(tmp_path):
    async with Controllers(tmp_path, count=1) as controllers:
        await controllers.leader()
        operator, *proxies = [controllers.remote() for _ in range(3)]
        await operator.do(SetUser(user=user(ALLOW_A)))
        granted = []
        for proxy in proxies:
            await proxy.ready()
            await proxy.barrier()
            control = AccessControl(
                AccessConfig(), proxy, Metrics(process=False), clock=lambda: 0.0, changed=lambda: None
            )
            granted.append(control.permissions(Principal(name="ada"), protocol="mqtt"))
        assert [(one.reads("a/b"), one.reads("c")) for one in granted] == [(True, False)] * 2
        await operator.do(SetUser(user=user(ALLOW_A, DENY_B)))
        await until(lambda: not any(one.reads("a/b") for one in granted))
        assert all(one.reads("a/c") for one in granted)
        await operator.do(DeleteUser(name="ada"))
        await until(lambda: not any(one.reads("a/c") for one in granted))
