"""Devices: which one a message is of, by one rule for all protocols.

`Message.device` says who spoke: an authenticated identity, a client identifier, or the peer's host. That is the
device for most fleets, and not for others: a backend that publishes for its devices, an AMQP user that all share, a
client identifier made up at every start. Rules, first match first, say where the device's name is instead. They are
applied where the log is read, so results can be computed again by other rules.

Without a rule, or where no rule that matches gives a name, it is the name in the log unless that was made up by a
client library, is `guest`, is the host of a peer, or is the message type in a topic name of Sparkplug, which adapters
without Sparkplug take for a device. Addresses of hardware (MAC, EUI-64) and decimal numbers are names, also with an F
behind them, as modems give an ICCID; other names of hexadecimal digits and colons (`a:b:c`) are taken for a host's.
Then it is Sparkplug's edge node and device (Sparkplug 3.0.0, chapter 4), or level 2 of an address of four levels or
more (`telemetry/site1/dev42/temp`), or else the address without its last level.

A login is in the log as the name of its messages, and as their principal only where it speaks for another device. Of a
client without a login the principal is empty, and a rule that asks for the identity finds no name. Records of versions
that did not write this are read as those of a login.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from store.api.filters import check_levels, matches
from store.api.message import EVENT, Message

DEVICE_CHARS_MAX: Final = 256  # a longer name is cut
_REMEMBERED_MAX = 65_536  # pairs of address and name that are remembered
_REMEMBERED_CHARS_MAX = 1_024  # of such a pair
_LEVEL = 2  # of an address, counted from 0: as the adapters' `device_level`
_SPARKPLUG = "spBv1.0"
_VERBOSE: Final = re.IGNORECASE | re.VERBOSE
_SHARED = re.compile(r"guest | anonymous | unknown", _VERBOSE)
_LIBRARYS = re.compile(
    r"""
    (mosq|auto|mqttjs|paho|pahomqtt|mqttx|mqtt[-_]explorer|mqttui|ctag|nodered)[-_/]?[-_0-9a-z]*[0-9][-_0-9a-z]*
  | mosq-[0-9a-z]+ | auto-[-0-9a-z]+
    """,
    _VERBOSE,
)
_MADE_UP = re.compile(
    r"""
    (?=[0-9]*[a-f])(?![0-9]{17,19}f\Z)[0-9a-f]{17,64}  # a random number; 16 digits are an EUI-64, and decimal ones
                                                       # an ICCID, which modems fill up with an F
  | \{?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\}?  # a UUID (RFC 9562)
  | ((\d{1,3}\.){3}\d{1,3} | localhost | \[?[0-9a-f]*:[0-9a-f:.]*:[0-9a-f:.]*(%[-.0-9a-z]+)?\]?) (:\d+)?  # a host
    """,
    _VERBOSE,
)
_HARDWARE = re.compile(r"([0-9a-f]{2}[:-]){5} (([0-9a-f]{2}[:-]){2})? [0-9a-f]{2}", _VERBOSE)  # EUI-48, EUI-64; no host


def generated(name: str) -> bool:
    """Returns whether a name was made up by a library, is shared by many, or is a host's: no device's own."""
    return _nobodys(name) or (_MADE_UP.fullmatch(name) is not None and not _HARDWARE.fullmatch(name))


class DeviceRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The place of the device's name, in messages of some addresses. Raises ValueError for a rule that is none."""

    filter: str = "#"  # of addresses, with + and #
    source: Literal["identity", "client_id", "level", "template", "property", "cloudevents"] = "level"
    level: int = _LEVEL  # of the address, counted from 0
    template: str = ""  # as "plant/{site}/{device}/#": {device} is the name; of several, joined by "/"
    name: str = ""  # of the property, or of the event's attribute

    def __post_init__(self) -> None:
        check_levels(self.filter)
        if self.source == "level" and self.level < 0:
            raise ValueError(f"level {self.level}: levels are counted from 0")
        if self.source == "template" and "{device}" not in self.template.split("/"):
            raise ValueError(f"template {self.template!r}: a level of it must be {{device}}")
        if self.source in ("property", "cloudevents") and not self.name:
            raise ValueError(f"source {self.source} needs a name")

    @property
    def by_address(self) -> bool:
        """Returns whether address and speaker alone decide."""
        return self.source not in ("property", "cloudevents")

    def find(self, message: Message, levels: Sequence[str]) -> str:
        """Returns the name in a message whose address has these levels; empty: none."""
        match self.source:
            case "identity":
                return _login(message.device if message.principal is None else message.principal)
            case "client_id":
                return _client(message.device)
            case "level":
                return levels[self.level] if self.level < len(levels) else ""
            case "template":
                return _by_template(self.template.split("/"), levels)
            case "property":
                return next((value for name, value in message.properties if name == self.name), "")
            case "cloudevents":
                event = (message.native or {}).get(EVENT)
                value = event.get(self.name) if isinstance(event, dict) else None
                return value if isinstance(value, str) else ""


class Devices:
    """The rules, ready to be applied to many messages."""

    def __init__(self, rules: Iterable[DeviceRule] = ()) -> None:
        self._rules = [(rule, rule.filter.split("/")) for rule in rules]
        self._known: dict[tuple[str, str, str | None], str] = {}  # of devices that address and speaker alone decide

    def of(self, messages: Sequence[Message]) -> list[str]:
        """Returns the device of each message. One look-up a message where it was seen before: 0.2 us."""
        known = self._known
        found = []
        for message in messages:
            device = known.get((message.address, message.device, message.principal))
            found.append(self._find(message) if device is None else device)
        return found

    def _find(self, message: Message) -> str:
        levels = message.address.split("/")
        matching = [rule for rule, pattern in self._rules if matches(pattern, levels)]
        name = next((name for rule in matching if (name := rule.find(message, levels))), "")
        found = (name or _by_default(message, levels))[:DEVICE_CHARS_MAX]
        said = len(message.address) + len(message.device) + len(message.principal or "")
        if said <= _REMEMBERED_CHARS_MAX and all(rule.by_address for rule in matching):
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            self._known[message.address, message.device, message.principal] = found
        return found


def _of_many(name: str) -> bool:
    return not name or _SHARED.fullmatch(name) is not None


def _nobodys(name: str) -> bool:
    """Returns whether a name was made up by a library, or is shared by many."""
    return _of_many(name) or _LIBRARYS.fullmatch(name) is not None


def _own(name: str) -> str:
    return "" if generated(name) else name


def _client(name: str) -> str:
    """Returns a client's name that a rule asks for, as random and as much like a host as it may look."""
    return "" if _nobodys(name) else name


def _login(name: str) -> str:
    """Returns the name of a login, which somebody chose: as much like a library's as it may look."""
    return "" if _of_many(name) else name


def _by_default(message: Message, levels: Sequence[str]) -> str:
    """Returns the name in the log if it is the speaker's own, else that in the address."""
    by_sparkplug = levels[0] == _SPARKPLUG and len(levels) > 3
    if _own(message.device) and not (by_sparkplug and message.device == levels[_LEVEL]):
        return message.device
    if by_sparkplug:
        return "/".join(levels[3:])
    if len(levels) > _LEVEL + 1 and levels[_LEVEL]:
        return levels[_LEVEL]
    return "/".join(levels[:-1]) or levels[0]


def _by_template(template: Sequence[str], levels: Sequence[str]) -> str:
    found: list[str] = []
    for n, wanted in enumerate(template):
        if wanted == "#":
            return "/".join(found)
        if n >= len(levels):
            return ""
        if wanted == "{device}":
            found.append(levels[n])
        elif not (wanted.startswith("{") and wanted.endswith("}")) and wanted not in ("+", levels[n]):
            return ""
    return "/".join(found) if len(template) == len(levels) else ""
