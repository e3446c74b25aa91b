"""The rows that a body is decoded to, and the limits on one body."""

from collections.abc import Iterator

ITEMS_MAX = 262_144  # of a body, nested ones included: in CBOR 1 us each, and some 70 bytes
METRICS_MAX = 256  # of one message; the rest of its fields is skipped
TEXTS_FACTOR, TEXTS_BYTES = 8, 4_096  # names, states and units of a message: 8 times its body and 4 KiB at most
FEW_METRICS = 8  # so many may have any texts
NAMES_MAX = 1_024  # of aliases, that one message gives; the rest stay unnamed
METRIC_CHARS_MAX = 256  # a field with a longer name is skipped
TEXT_CHARS_MAX = 1_024  # of a state; the rest is cut off
UNIT_CHARS_MAX = 64  # the rest is cut off
DEPTH_MAX = 8  # of nested fields; deeper ones are skipped
NUMBER_MAX = 1e150  # a number beyond it is skipped: sums of squares of a window are finite
TIME_US_MAX = 253_402_300_799_999_000  # the end of the year 9999; earlier than 1970 and later is no time

OK = "ok"
NO_METRICS = "no_metrics"  # read, but without a number or state where one would count
BAD_BODY = "bad_body"  # it contradicts its content type, its topic's format or its first byte
ENCODED = "encoded"  # compressed by its sender: not looked into
TOO_MANY = "too_many_metrics"  # the first METRICS_MAX were taken


class Undecodable(Exception):
    """A body that is not of its format; the text says why, for the table `quarantine`."""


class Rows:
    """Rows of many messages, column by column: message `i` has rows `bounds[i]` to `bounds[i + 1]`."""

    def __init__(self, *, metrics_max: int = METRICS_MAX) -> None:
        self._metrics_max = metrics_max  # of a message
        self.bounds = [0]
        self.metrics: list[str] = []
        self.values: list[float | None] = []
        self.texts: list[str | None] = []
        self.units: list[str | None] = []
        self.times_us: list[int | None] = []  # None: the message's
        self.aliases: list[int | None] = []  # of Sparkplug: the alias of a name that a BIRTH gave
        self.names: list[tuple[int, int, str]] = []  # of Sparkplug: a message, an alias, and the name it gives that
        self._names_begin = 0  # of the message that goes on
        self.quality: list[str] = []
        self.reasons: list[str | None] = []

    def number(self, metric: str, value: float, unit: str | None = None, time_us: int | None = None) -> None:
        """Adds a number; one that is none (NaN), or beyond `NUMBER_MAX`, is skipped."""
        if -NUMBER_MAX <= value <= NUMBER_MAX:
            self._add(metric, float(value), None, unit, time_us)

    def state(self, metric: str, text: str, unit: str | None = None, time_us: int | None = None) -> None:
        """Adds a text."""
        self._add(metric, None, text[:TEXT_CHARS_MAX], unit, time_us)

    def flag(self, metric: str, flag: bool, unit: str | None = None, time_us: int | None = None) -> None:
        """Adds a boolean: a state, and 0 or 1."""
        self._add(metric, float(flag), "true" if flag else "false", unit, time_us)

    def value(self, metric: str, value: object, unit: str | None = None, time_us: int | None = None) -> None:
        """Adds a boolean, a number or a text; anything else is skipped."""
        if isinstance(value, bool):
            self.flag(metric, value, unit, time_us)
        elif isinstance(value, int | float):
            self.number(metric, value, unit, time_us)
        elif isinstance(value, str):
            self.state(metric, value, unit, time_us)

    def alias(self, alias: int) -> None:
        """Sets the alias (64 bits, unsigned) of the row added last; columns have it as a signed number."""
        self.aliases[-1] = alias - ((alias >> 63) << 64)

    def name(self, alias: int, metric: str) -> None:
        """Gives an alias a name, whether or not the message has a value of it."""
        if len(self.names) - self._names_begin < NAMES_MAX:
            self.names.append((len(self.bounds) - 1, alias - ((alias >> 63) << 64), metric))

    def end(self, quality: str | None = None, reason: str | None = None, *, body_bytes: int | None = None) -> None:
        """Ends a message, whose texts a body of so many bytes bounds. Without `quality` it follows from its rows."""
        begin = self.bounds[-1]
        if quality in (BAD_BODY, ENCODED):
            for column in self._columns:
                del column[begin:]
            del self.names[self._names_begin :]
        count = len(self.metrics) - begin
        most = self._metrics_max
        if body_bytes is not None and count > FEW_METRICS:
            most = min(most, self._fitting(begin, body_bytes))
        if count > most:
            for column in self._columns:
                del column[begin + most :]
            quality = TOO_MANY
        self.quality.append(quality or (OK if count else NO_METRICS))
        self.reasons.append(reason)
        self.bounds.append(len(self.metrics))
        self._names_begin = len(self.names)

    def _fitting(self, begin: int, body_bytes: int) -> int:
        """Returns how many rows from `begin` on have texts of a length that the body accounts for.

        A body can give one name to all its rows, so that they take a hundred times its bytes.
        """
        left = TEXTS_FACTOR * body_bytes + TEXTS_BYTES
        for count, size in enumerate(self._text_sizes(begin)):
            left -= size
            if left < 0:
                return max(count, FEW_METRICS)
        return len(self.metrics) - begin

    @property
    def text_bytes(self) -> int:
        """Returns the bytes of all names, states and units."""
        return sum(self._text_sizes(0))

    def _text_sizes(self, begin: int) -> Iterator[int]:
        """Yields the bytes of each row's texts in UTF-8."""
        for texts in zip(*(column[begin:] for column in (self.metrics, self.texts, self.units)), strict=True):
            yield sum([len(text if text.isascii() else text.encode()) for text in texts if text is not None])

    @property
    def named(self) -> bool:
        """Returns whether the message has given as many names as count."""
        return len(self.names) - self._names_begin >= NAMES_MAX

    @property
    def full(self) -> bool:
        """Returns whether the message has more rows than count."""
        return len(self.metrics) - self.bounds[-1] > self._metrics_max

    @property
    def _columns(self) -> tuple[list, ...]:  # type: ignore[type-arg]  # of several types
        return self.metrics, self.values, self.texts, self.units, self.times_us, self.aliases

    def _add(self, metric: str, value: float | None, text: str | None, unit: str | None, time_us: int | None) -> None:
        if len(metric) > METRIC_CHARS_MAX or self.full:
            return
        self.metrics.append(metric)
        self.values.append(value)
        self.texts.append(text)
        self.units.append(unit if unit is None else unit[:UNIT_CHARS_MAX])
        self.times_us.append(time_us)
        self.aliases.append(None)
