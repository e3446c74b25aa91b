"""The part of a device's page that comes from the gateway: its connections and sessions, and their subscriptions."""

from collections.abc import Mapping, Sequence
from typing import Any

from dash import html

from spark.dashboard.clients.gateway import Credentials
from spark.dashboard.layout import formatting, parts
from spark.dashboard.pages.sources import Sources

_TITLE = "Session and subscriptions of its client"
_HEAD = ("Protocol", "Client", "State", "Session", "Subscriptions")


def of_device(sources: Sources, device: str, who: Credentials | None) -> Any:
    """Returns the connections and sessions whose client has the device's name, as `who` may see them."""
    if not device:
        return None
    user = None if who is None else who[0]
    answer = sources.admin.sessions(device, user)
    if answer.error:
        return parts.section(_TITLE, parts.trouble("They are not shown", answer.error, color="orange"))
    if not answer.rows:
        seen = "" if user is None else f" that {user} may see"
        text = (
            f"The gateway has no connection and no session{seen} of a client “{device}”. The tables may name a device "
            "by its address, while its client has another name; and CoAP over UDP has neither."
        )
        return parts.section(_TITLE, parts.note(text))
    now_ms = sources.now_ms
    table = parts.table(_HEAD, [_row(one, now_ms) for one in answer.rows], empty="")
    more = parts.note(f"The first {len(answer.rows)} are shown.") if answer.more else None
    return parts.section(_TITLE, table, more)


def _row(one: Mapping[str, Any], now_ms: int) -> list[Any]:
    user = one.get("user") or ""
    client = one.get("client") or "-"
    return [
        one.get("protocol", "-"),
        html.Span([html.Span(client, className="mono"), f", user {user}" if user else ""]),
        _state(one, now_ms),
        _lasting(one, now_ms),
        _subscriptions(one),
    ]


def _state(one: Mapping[str, Any], now_ms: int) -> Any:
    state, left_ms = one.get("state"), one.get("left_ms")
    if state == "connected":
        return html.Span([parts.badge("connected", "green"), f" from {one['peer']}" if one.get("peer") else ""])
    if state == "elsewhere":
        return html.Span([parts.badge("elsewhere", "blue"), " connected to another gateway, by its last report"])
    since = "" if left_ms is None else f" {formatting.ago(left_ms, now_ms)}"
    return html.Span([parts.badge("away", "gray"), since])


def _lasting(one: Mapping[str, Any], now_ms: int) -> str:
    expiry_s, left_ms = one.get("expiry_s", 0), one.get("left_ms")
    if expiry_s is None:
        return "kept for ever"
    if expiry_s == 0:
        return "ends with its connection"
    if left_ms is None:
        return f"kept for {formatting.duration(1000 * expiry_s)} after its connection"
    return f"ends in {formatting.duration(max(0, left_ms + 1000 * expiry_s - now_ms))}"


def _subscriptions(one: Mapping[str, Any]) -> Any:
    found: Sequence[Mapping[str, Any]] | None = one.get("subscriptions")
    if found is None:
        return "they cannot be read by this version of the gateway"
    lines: list[Any] = []
    for each in found:
        qos = each.get("qos")
        name = html.Span(each["filter"], className="mono", style={"overflowWrap": "anywhere"})
        lines.append(html.Div([name, "" if qos is None else f" QoS {qos}"]))
    if one.get("partial"):
        lines.append(html.Div("and others, which are not shown", className="dimmed"))
    return html.Div(lines) if lines else "none"
