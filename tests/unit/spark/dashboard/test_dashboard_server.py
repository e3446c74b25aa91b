"""The dashboard's server: who is let in, CSV files, the admin API, and where it refuses to listen."""

import base64
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("duckdb")
pytest.importorskip("dash_mantine_components")
pytest.importorskip("waitress")

from spark.dashboard import guard, server
from spark.dashboard.clients.admin import AdminApi
from spark.dashboard.clients.gateway import GatewayApi, GatewayRefused
from spark.dashboard.layout import formatting
from spark.dashboard.layout.links import PageAddress, device_link
from spark.dashboard.pages.sources import Sources
from spark.dashboard.queries.reading import TelemetryTables
from spark.errors import BadOption, SparkError
from tests.support.process.waiting import WAIT_S
from tests.support.spark.sample_tables import make_tables

NOW_MS = 1_767_312_000_000 - 7_000
LOCAL = {"base_url": "http://127.0.0.1:8050"}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    where = tmp_path_factory.mktemp("tables")
    make_tables(where, NOW_MS, devices=3, minutes=30)
    return TelemetryTables(where)


def client(tables, **more):
    sources = Sources(tables, AdminApi("http://127.0.0.1:9"), lambda: NOW_MS / 1000)
    return server.application(sources, **more).server.test_client()


def test_on_loopback_only_names_of_this_machine_are_answered(tables):
    browser = client(tables)
    for host in ("localhost:8050", "127.0.0.1:8050", "[::1]:8050", "localhost"):
        assert browser.get("/", base_url=f"http://{host}").status_code == 200
    for host in ("rebound.example:8050", "localhost.example", "10.0.0.1:8050"):
        assert browser.get("/export/fleet.csv", base_url=f"http://{host}").status_code == 403
    assert browser.get("/", **LOCAL).headers["X-Frame-Options"] == "DENY"


# Every way in: to all, the tables show everything, and what is asked of the gateway is asked in the name of who is
# logged in (docs/dashboard.md).
WAYS = {
    **dict.fromkeys(["/", "/<path:path>", "/_dash-layout", "/_dash-dependencies", "/_reload-hash"], "pages, empty"),
    **dict.fromkeys(["/_favicon.ico", "/assets/<path:filename>", "/static/<path:filename>"], "files of the program"),
    "/_dash-component-suites/<string:package_name>/<path:fingerprinted_path>": "files of the program",
    "/_dash-update-component": "tables; of the gateway messages, groups, sessions and commands",
    **dict.fromkeys([f"/export/{name}.csv" for name in ("fleet", "anomalies", "series", "explorer")], "tables"),
}


def test_every_way_in_is_in_the_table_and_wants_a_password(tables):
    browser = client(tables, check=lambda *_: False)
    rules = list(browser.application.url_map.iter_rules())
    assert {rule.rule for rule in rules} == WAYS.keys()
    for rule in rules:
        path = rule.rule.replace("<path:", "").replace("<string:", "").replace(">", "")
        for method in sorted(rule.methods):
            answer = browser.open(path, method=method, **LOCAL)
            assert answer.status_code == 401, (method, path)
            assert b"sensor" not in answer.data


@pytest.mark.slow
def test_users_log_in_with_the_right_password_alone(tables):
    asked = []

    def check(name, password):
        asked.append(name)
        return (name, password) == ("alice", b"s\xc3\xa9same")

    browser = client(tables, check=check)
    for given in (None, "alice:wrong", "bob:sésame", ":", "alice"):
        headers = {} if given is None else {"Authorization": "Basic " + base64.b64encode(given.encode()).decode()}
        answer = browser.get("/export/fleet.csv", headers=headers, **LOCAL)
        assert (answer.status_code, answer.headers["WWW-Authenticate"][:5]) == (401, "Basic")
        assert b"sensor" not in answer.data
    asked.clear()
    right = {"Authorization": "Basic " + base64.b64encode("alice:sésame".encode()).decode()}
    for _ in range(3):
        assert browser.get("/export/fleet.csv", headers=right, base_url="http://dashboard.example").status_code == 200
    assert asked == ["alice"]  # the right password is remembered


def test_whoever_sends_many_wrong_passwords_keeps_nobody_out(tables, monkeypatch):
    compared, going_on = threading.Semaphore(0), threading.Event()
    monkeypatch.setattr(guard, "WRONG_S", 0.0)

    def check(name, _password):
        if name == "mallory":
            compared.release()
            assert going_on.wait(WAIT_S)
        return name == "alice"

    def asked(name):
        headers = {"Authorization": "Basic " + base64.b64encode(f"{name}:secret".encode()).decode()}
        return browser.get("/export/fleet.csv", headers=headers, **LOCAL).status_code

    browser = client(tables, check=check)
    assert asked("alice") != 401
    with ThreadPoolExecutor(guard.COMPARING_COUNT_MAX) as others:
        wrong = [others.submit(asked, "mallory") for _ in range(guard.COMPARING_COUNT_MAX)]
        for _ in wrong:
            assert compared.acquire(timeout=WAIT_S)
        found = [asked(name) for name in ("mallory", "bob", "alice")]
        going_on.set()
        assert [one.result() for one in wrong] == [401] * len(wrong)
    assert found[:2] == [503, 503]
    assert found[2] not in {401, 503}


def test_off_loopback_nothing_is_served_without_users(tables):
    options = server.DashboardOptions(tables=tables.place.url, host="0.0.0.0", port=0)
    with pytest.raises(BadOption, match=r"without users.*\[auth\.users\]"):
        server.run(options, ready=pytest.fail)


def test_a_port_that_is_taken_is_a_sentence(tables):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = server.DashboardOptions(tables=tables.place.url, port=taken.getsockname()[1])
        with pytest.raises(SparkError, match=r"cannot listen on 127\.0\.0\.1:\d+: .* in use.*see --port"):
            server.run(options, ready=pytest.fail)


@pytest.mark.parametrize("url", ["foo", "127.0.0.1:8088", "http://", "ftp://host", "http://[::1"])
@pytest.mark.parametrize("name", ["admin", "gateway"])
def test_what_is_no_url_of_a_gateway_is_a_sentence(tables, name, url):
    options = server.DashboardOptions(tables=tables.place.url, port=0)._replace(**{name: url})
    with pytest.raises(BadOption, match=f"option {name} cannot be .*: the URL of the gateway's"):
        server.run(options, ready=pytest.fail)


def test_csv_files_hold_what_pages_show(tables):
    browser = client(tables)
    lines = browser.get("/export/fleet.csv?search=sensor-001", **LOCAL).text.splitlines()
    assert lines[0] == "device,address,metrics,heard_ms,metric,value,unit,state"
    assert len(lines) == 2
    lines = browser.get("/export/series.csv?device=sensor-001&metric=battery&range=15m", **LOCAL).text.splitlines()
    assert lines[0] == "start_ms,count,min,max,mean,p50,p95"
    assert 15 <= len(lines) <= 17
    answer = browser.get("/export/explorer.csv", query_string={"sql": "SELECT 1 AS one"}, **LOCAL)
    assert answer.text.splitlines() == ["one", "1"]
    answer = browser.get("/export/explorer.csv", query_string={"sql": "COPY latest TO 'x'"}, **LOCAL)
    assert (answer.status_code, "only statements that read" in answer.text) == (400, True)


class GrowingGateway:
    """An admin API that stores ten messages between two answers."""

    def __init__(self):
        self.stored, self.asked, self.body = 0, 0, None

    def __call__(self, request):
        if request.url.path == "/metrics":
            return httpx.Response(
                200, text='headgate_connections{protocol="mqtt"} 2\nheadgate_connections{protocol="http"} 3\n'
            )
        self.asked += 1
        self.stored += 10
        topics = [{"name": "t", "records": 3 * self.stored}, {"name": "kept short", "records": 100 - self.stored}]
        status = {"ready": True, "stored": {"mqtt": self.stored}, "topics": topics}
        return httpx.Response(200, text=self.body or json.dumps(status))


def test_the_admin_api_is_asked_at_most_once_in_two_seconds_and_gives_rates():
    now_s, gateway = [100.0], GrowingGateway()
    admin = AdminApi("http://gateway/", transport=httpx.MockTransport(gateway), clock_s=lambda: now_s[0])
    assert admin.ask().stored_rates == {}
    now_s[0] += 1
    admin.ask()
    assert gateway.asked == 1
    now_s[0] += 4
    answer = admin.ask()
    assert answer.stored_rates == {"mqtt": 2.0}
    assert answer.topic_rates == {"t": 6.0, "kept short": 0.0}
    assert answer.metrics == {"headgate_connections": 5.0}
    gateway.body = "junk"
    now_s[0] += 5
    assert "does not answer" in admin.ask().error
    gateway.body = None
    now_s[0] += 5
    assert (admin.ask().error, admin.ask().stored_rates) == ("", {})


def test_a_topic_whose_records_were_not_all_known_has_no_rate():
    """Records that came back after an outage counted as if they had just been published."""
    known = {"name": "t", "queues": 2, "records": 1_000_000}
    listed = [[{**known, "records": 1_000, "unknown": 1}], [known], [known, {"name": "new", "records": 5_000}]]
    listed += [[{**known, "records": 1_000_050}, {"name": "new", "records": 5_020, "unknown": 1}]]
    now_s = [100.0]

    def answer(request):
        if request.url.path == "/metrics":
            return httpx.Response(200, text="")
        return httpx.Response(200, json={"topics": listed[round(now_s[0] - 100) // 10]})

    admin = AdminApi("http://gateway", transport=httpx.MockTransport(answer), clock_s=lambda: now_s[0])
    found = []
    for _ in listed:
        found.append(dict(admin.ask().topic_rates))
        now_s[0] += 10
    assert found == [{}, {}, {"t": 0.0}, {"t": 5.0}]


def test_sessions_are_asked_for_in_the_name_of_who_is_logged_in():
    asked = []

    def answer(request):
        asked.append(str(request.url))
        status, body = answers.pop()
        return httpx.Response(status, json=body)

    admin = AdminApi("http://gateway/", transport=httpx.MockTransport(answer))
    answers = [(200, {"rows": [], "more": True}), (200, {"rows": [{"client": "a b"}], "more": False})]
    assert admin.sessions("a b", None).rows == [{"client": "a b"}]
    assert admin.sessions("a&user=x", "ada").more
    assert asked == ["http://gateway/sessions?client=a+b", "http://gateway/sessions?client=a%26user%3Dx&user=ada"]
    answers = [(200, ["junk"]), (500, {}), (404, {})]
    for words in ("is of a version that does not list", "refuses: Internal Server Error", "does not answer"):
        assert words in admin.sessions("a", None).error


def test_an_address_that_does_not_answer_is_a_sentence():
    assert "http://127.0.0.1:9 does not answer" in AdminApi("http://127.0.0.1:9").ask().error


@pytest.mark.parametrize("name", ["plain", "a/b c", "?x=1&y#z", "ü%2F", "=1", "a\nb", "\n", "/a//b/"])
def test_any_name_of_a_device_goes_through_its_address(tables, name):
    link = device_link(name, metric="m/1", range_="6h")
    assert client(tables).get(link, **LOCAL).status_code == 200, "a link that was kept opens the page"
    path, _, search = link.partition("?")
    where = PageAddress.parse(path, f"?{search}")
    assert (where.page, where.device, where.query["metric"], where.range) == ("device", name, "m/1", "6h")


def test_numbers_and_times_are_words():
    assert [formatting.duration(ms) for ms in (None, 5, 1_200, 300_000, 7_200_000, 259_200_000)] == [
        *("-", "5 ms", "1.2 s", "5 min", "2 h", "3 d")
    ]
    assert [formatting.number(v) for v in (None, float("nan"), 21.456789, 1_234_567.0)] == [
        "-",
        "-",
        "21.457",
        "1,234,567",
    ]


def test_pages_of_others_can_make_it_do_nothing(tables):
    """A command is a POST; a browser says whose page sends it."""
    browser = client(tables)
    call = {"json": {}, "base_url": "http://127.0.0.1:8050"}
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ):
        assert browser.post("/_dash-update-component", headers=headers, **call).status_code == 403, headers
    for headers in ({}, {"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:8050"}):
        assert browser.post("/_dash-update-component", headers=headers, **call).status_code != 403


def test_pages_of_others_can_run_no_query(tables):
    """A picture of another page has any address: a query of an export would take memory and time."""
    browser = client(tables)
    asked = {"query_string": {"sql": "SELECT 1 AS one"}, **LOCAL}
    for site in ("cross-site", "same-site"):
        for name in ("fleet", "anomalies", "series", "explorer"):
            answer = browser.get(f"/export/{name}.csv", headers={"Sec-Fetch-Site": site}, **asked)
            assert (answer.status_code, "another site" in answer.text) == (403, True), (site, name)
    for headers in ({}, {"Sec-Fetch-Site": "none"}, {"Sec-Fetch-Site": "same-origin"}):
        assert browser.get("/export/explorer.csv", headers=headers, **asked).text.splitlines() == ["one", "1"]
    assert browser.get("/", headers={"Sec-Fetch-Site": "cross-site"}, **LOCAL).status_code == 200  # a link leads here


@pytest.mark.parametrize("address", ["commands/../../groups/orders/reset", "commands/..", "./commands/x", "a/./b"])
def test_a_command_goes_to_its_address_alone(address):
    """Clients and proxies take the segments `.` and `..` out of a path (RFC 3986, 5.2.4)."""
    gateway = GatewayApi("http://gateway", transport=httpx.MockTransport(pytest.fail))
    with pytest.raises(GatewayRefused, match=r"a level `\.` or `\.\.`"):
        gateway.publish(address, b"{}", "application/json", None)


def test_names_with_dots_are_addresses_of_commands():
    paths = []

    def answer(request):
        paths.append(request.url.raw_path)
        return httpx.Response(200, json={"position": "1.0"})

    gateway = GatewayApi("http://gateway", transport=httpx.MockTransport(answer))
    assert gateway.publish("commands/...//v1.2/a b?", b"{}", "application/json", None) == "1.0"
    assert paths == [b"/topics/commands/...//v1.2/a%20b%3F"]


def _queues_of(url, topic):
    """Returns the queues of a topic, as a consumer group shows them."""
    httpx.post(f"{url}/groups/dash-queues/members", json={"topic": topic}, trust_env=False)
    return httpx.get(f"{url}/groups/dash-queues", trust_env=False).json()["queues"]


def test_the_gateway_is_asked_in_the_name_of_who_is_logged_in(shared_gateway):
    """Groups, messages and commands, of a real gateway."""
    gateway = GatewayApi(shared_gateway.url)
    gateway.publish("commands/dash/1", b'{"on": true}', "application/json", None)
    url = f"{shared_gateway.url}/topics/commands/dash/2"
    for n in range(5):
        httpx.post(url, json={"n": n}, headers={"ce-id": f"its-own-{n}"}, trust_env=False)
    queues = [queue["queue"] for queue in _queues_of(shared_gateway.url, "commands")]
    first = [gateway.read_queue(queue, ["commands/dash/1"], None, offset=0, limit=9) for queue in queues]
    ((queue, (found,)),) = [(n, part.events) for n, part in zip(queues, first, strict=True) if part.events]
    assert (found["subject"], found["data"], found["headgatequeue"]) == ("commands/dash/1", {"on": True}, str(queue))
    asked = (int(found["headgatequeue"]), int(found["headgateoffset"]))
    assert gateway.message(*asked, "commands/dash/1", None) == found
    assert gateway.message(asked[0], asked[1] + 1, "commands/dash/1", None) is None
    assert gateway.message(*asked, "commands/dash/nobody", None) is None
    offsets = []
    for queue in queues:
        after = 0
        while after is not None:
            part = gateway.read_queue(queue, ["commands/dash/2"], None, offset=after, limit=2)
            offsets += [(event["id"], event["data"]) for event in part.events]
            after = part.after
    assert offsets == [(f"its-own-{n}", {"n": n}) for n in range(5)]
    httpx.post(f"{shared_gateway.url}/groups/dash-lag/members", json={"topic": "commands"}, trust_env=False)
    (group,) = [one for one in gateway.groups(None) if one.name == "dash-lag"]
    assert (group.topic, group.members) == ("commands", 1)
    assert group.lag == sum(queue["lag"] for queue in group.queues) >= 1
    with pytest.raises(GatewayRefused, match="The gateway refuses"):
        gateway.publish("a/#/b", b"", "text/plain", None)
    with pytest.raises(GatewayRefused, match="may not do that"):
        gateway.publish("commands/x", b"", "text/plain", ("nobody", "wrong"))
    with pytest.raises(GatewayRefused, match=r"does not answer.*--gateway"):
        GatewayApi("http://127.0.0.1:9").groups(None)
    with pytest.raises(GatewayRefused, match="bytes at most"):
        gateway.publish("commands/x", bytes(100_000), "text/plain", None)
    gateway.close()
