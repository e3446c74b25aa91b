"""The records that a query wants: by address filter, device and type, decided before a row is made of a record."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from store.api.devices import Devices
from store.api.filters import matches
from store.api.message import Message

ADDRESS: Final = "address"
DEVICE: Final = "device"
FIELDS: Final = (ADDRESS, DEVICE, "type", "protocol", "key", "speaker", "principal", "content_type")
_ATTRIBUTES: Final = {"speaker": "device"}  # columns that have another name in a message
_REMEMBERED_MAX: Final = 65_536  # addresses


class _Addressed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first field of a message; the decoder skips the others."""

    address: str


_decode = msgspec.msgpack.Decoder(_Addressed).decode


def address_of(record: bytes) -> str:
    """Returns the address of an encoded message: 0.1 us, a third of the whole. Raises the errors of decoding."""
    return _decode(record).address


@dataclass
class Selection:
    """The conditions that a record has to meet, all of them. Pickled to the executors."""

    filters: tuple[str, ...] = ()  # of addresses; any of them
    equal: dict[str, frozenset[str]] = field(default_factory=dict)  # of `FIELDS`: any of these texts

    def __post_init__(self) -> None:
        assert set(self.equal) <= set(FIELDS)
        self._patterns = [one.split("/") for one in self.filters]
        self._known: dict[str, bool] = {}

    def __getstate__(self) -> Mapping[str, object]:
        return {"filters": self.filters, "equal": self.equal}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def also(self, name: str, texts: Collection[str]) -> None:
        """Narrows to records whose field is one of these."""
        before = self.equal.get(name)
        self.equal[name] = frozenset(texts) if before is None else before & frozenset(texts)
        self._known.clear()

    @property
    def by_address(self) -> bool:
        """Returns whether addresses decide about some records."""
        return bool(self.filters) or ADDRESS in self.equal

    @property
    def by_message(self) -> bool:
        """Returns whether more than the address decides."""
        return bool(self.equal.keys() - {ADDRESS})

    def first_levels(self) -> frozenset[str] | None:
        """Returns the first levels that wanted addresses can have ("/": an empty one); None when that may be any."""
        named: frozenset[str] | None = None
        patterns = [pattern[0] for pattern in self._patterns]
        if patterns and not {"+", "#"} & set(patterns):
            named = frozenset(level or "/" for level in patterns)
        if (wanted := self.equal.get(ADDRESS)) is not None:
            levels = frozenset(address.split("/", 1)[0] or "/" for address in wanted)
            named = levels if named is None else named & levels
        return named

    def addresses(self, addresses: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Returns for each record whether its address is wanted."""
        known = self._known
        found = np.empty(len(addresses), np.bool_)
        for n, address in enumerate(addresses):
            wanted = known.get(address)
            found[n] = self._learn(address) if wanted is None else wanted
        return found

    def messages(self, messages: Sequence[Message], devices: Devices) -> npt.NDArray[np.bool_]:
        """Returns for each message whether it is wanted by all but its address."""
        found = np.ones(len(messages), np.bool_)
        for name, wanted in self.equal.items():
            if name == ADDRESS:
                continue
            texts = devices.of(messages) if name == DEVICE else map(attrgetter(_ATTRIBUTES.get(name, name)), messages)
            found &= np.fromiter((text in wanted for text in texts), np.bool_, len(messages))
        return found

    def _learn(self, address: str) -> bool:
        wanted = self.equal.get(ADDRESS)
        levels, hidden = (
            address.split("/"),
            address.startswith("$"),
        )  # from wildcards in the first level: MQTT 5.0, 4.7.2
        found = (wanted is None or address in wanted) and (
            not self._patterns
            or any(matches(one, levels) and not (hidden and one[0] in ("+", "#")) for one in self._patterns)
        )
        if len(self._known) >= _REMEMBERED_MAX:
            self._known.clear()
        self._known[address] = found
        return found
