"""`headgate groups` against a real gateway, and against answers made up."""

import httpx
import pytest
from typer.testing import CliRunner

from gateway.cli.commands import app
from gateway.remote.groups import GatewayGroups
from gateway.remote.http import RemoteGateway, RemoteRefused
from tests.support.process.program import headgate


def groups_command(*args):
    done = headgate("groups", *args)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.slow
def test_a_group_from_beginning_to_end(shared_gateway):
    offset = ("--port-offset", str(shared_gateway.offset))
    with httpx.Client(base_url=shared_gateway.url, timeout=90) as client:
        for n in range(10):
            assert client.post("/topics/cligroups/x", params={"key": f"k{n}"}, content=b"%d" % n).status_code == 201
        joined = client.post("/groups/cli/members", json={"topic": "cligroups", "ttl_s": 300}).raise_for_status().json()
        member = f"/groups/cli/members/{joined['member']}"
        got = client.get(f"{member}/messages", params={"max": 4, "wait": 5}).raise_for_status().json()
        assert len(got["messages"]) == 4
        client.post(f"{member}/commit", json={"after": got["after"]}).raise_for_status()
        assert "cli\tcligroups\taveraged\n" in groups_command("list", *offset)[1]
        code, shown, _ = groups_command("show", "cli", *offset)
        assert (code, shown.splitlines()[0]) == (0, "cli reads cligroups (averaged): 1 members, 6 behind")
        assert joined["member"] in shown
        code, _, error = groups_command("delete", "cli", *offset)
        assert (code, error) == (1, "headgate: 409 Conflict: the group 'cli' has 1 members\n")
        code, done, _ = groups_command("reset", "cli", "--to", "earliest", *offset)
        assert code == 0
        queues = dict(line.split("\t") for line in done.splitlines())
        assert set(queues.values()) == {"0"}
        code, done, _ = groups_command("reset", "cli", "--to", "latest", "--queue", next(iter(queues)), *offset)
        assert len(done.splitlines()) == 1
        code, done, _ = groups_command("reset", "cli", "--time", "2001-01-01T00:00:00Z", *offset)
        assert done.count("\t0\n") == len(queues)
        code, done, _ = groups_command("reset", "cli", "--offset", f"{next(iter(queues))}=0", *offset)
        assert (code, done) == (0, f"{next(iter(queues))}\t0\n")
        refused = client.post(f"{member}/commit", json={"after": got["after"]})
        assert refused.status_code == 409
        assert refused.json()["queues"]
        client.delete(member).raise_for_status()
    assert groups_command("delete", "cli", *offset)[0] == 0
    assert groups_command("show", "cli", *offset)[::2] == (1, "headgate: 404 Not Found: there is no group 'cli'\n")


@pytest.mark.parametrize(
    "args",
    [(), ("--to", "latest", "--time", "5"), ("--offset", "16"), ("--offset", "a=1"), ("--offset", "16=-1")],
)
def test_a_reset_that_says_nothing_or_too_much(args):
    result = CliRunner().invoke(app, ["groups", "reset", "g", *args])
    assert result.exit_code == 2


def remote(answers):
    def handler(request):
        return answers[request.url.raw_path.decode()]

    return GatewayGroups(RemoteGateway("http://g", transport=httpx.MockTransport(handler)))


def test_all_pages_are_read():
    def page(names, **headers):
        return httpx.Response(200, json=[{"group": n, "topic": "t", "strategy": "averaged"} for n in names], **headers)

    groups = remote(
        {
            "/groups?limit=1000": page("ab", headers={"link": '</groups?limit=1000&after=b>; rel="next"'}),
            "/groups?limit=1000&after=b": page("c"),
        }
    )
    assert [one.group for one in groups.names()] == ["a", "b", "c"]


def test_what_is_no_gateway():
    groups = remote({"/groups/a%2Fb": httpx.Response(200, text="hello"), "/groups?limit=1000": httpx.Response(200)})
    with pytest.raises(RemoteRefused, match="does not answer as a gateway with groups does"):
        groups.describe("a/b")
    with pytest.raises(RemoteRefused, match="does not answer as a gateway with groups does"):
        list(groups.names())
