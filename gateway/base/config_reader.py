"""Plain tables into typed structs, every mistake named by its full key path.

The generic half of the configuration: it knows msgspec structs, key paths and how to report mistakes; the keys
themselves are in `gateway.config.config`. All mistakes of a configuration are reported together, not one a run.
"""

import difflib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import msgspec

ENV_PREFIX = "HEADGATE__"
SECRET_BYTES_MAX = 64 * 1024  # a secret's file that is larger is some other file

S = TypeVar("S", bound=msgspec.Struct)
DEFAULT_ELSEWHERE = "default elsewhere"  # in `Meta.extra` of a field whose default is not the one that counts


class Secret:
    """A text that no log, traceback or dump shows."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Returns the text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


class Hash(Secret):
    """A hash of a secret, which may be written in the file in the secret's place."""

    __slots__ = ()


class Text(str):
    """A value that came as text, to be converted to its field's type; `variable` of the environment had it, or none."""

    __slots__ = ("variable",)
    variable: str

    def __new__(cls, text: str, variable: str = "") -> "Text":
        """Returns a text of a variable."""
        made = super().__new__(cls, text)
        made.variable = variable
        return made


class Mistakes:
    """The mistakes of a configuration, in the order they were found."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, path: str, what: str) -> None:
        """Adds one line: the key, and a remedy."""
        self.lines.append(f"{path}: {what}")


def merge(into: dict[str, Any], table: Mapping[str, Any]) -> None:
    """Lays one tree of tables over another, key by key."""
    for key, value in table.items():
        below = into.get(key)
        if isinstance(value, Mapping) and isinstance(below, dict):
            merge(below, value)
        elif isinstance(value, Mapping):
            into[key] = {}
            merge(into[key], value)
        else:
            into[key] = value


def environment_table(environ: Mapping[str, str]) -> dict[str, Any]:
    """Reads `HEADGATE__STORE__DATA_DIR=x` as `{"store": {"data_dir": "x"}}`; names are lower-cased, sorted, applied."""
    table: dict[str, Any] = {}
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX):
            fill(table, name[len(ENV_PREFIX) :].lower().split("__"), Text(environ[name], name))
    return table


def fill(table: dict[str, Any], keys: Iterable[str], value: Any) -> None:
    """Puts one value at a key path, making the tables on the way; a value already on the way gives place."""
    *tables, last = keys
    for key in tables:
        below = table.get(key)
        if not isinstance(below, dict):
            below = table[key] = {}
        table = below
    table[last] = value


def read_struct(kind: type[S], raw: Any, path: str, mistakes: Mistakes) -> S | None:
    """Returns a struct from a table; None when a mistake was found, which `mistakes` then names."""
    raw = _from_text(raw)
    if not isinstance(raw, Mapping):
        mistakes.add(path, f"is a table; write [{path}] with its keys below, not {raw!r}")
        return None
    before = len(mistakes.lines)
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    given, spoiled = _read_secret_files(fields, raw, path, mistakes)
    values: dict[str, Any] = {}
    for key, value in given.items():
        field = fields.get(key)
        if field is None:
            mistakes.add(_join(path, key), unknown_key(key, path, _readable_names(fields), value))
            continue
        values[field.name] = _read(field.type, value, _join(path, key), field, mistakes)
    for field in fields.values():
        if field.required and field.name not in values and field.name not in spoiled:
            mistakes.add(_join(path, field.encode_name), f"is missing{_hint(field)}")
    if len(mistakes.lines) > before:
        return None
    try:
        return kind(**values)
    except ValueError as error:  # of a check over several keys (`__post_init__`)
        mistakes.add(path, str(error))
        return None


def unknown_key(key: str, path: str, names: Iterable[str], value: Any) -> str:
    """Returns the message for a key that does not exist: it names the nearest one that does, or all of them.

    It also names the variable of the environment that holds the value.
    """
    known = sorted(names)
    variable = _variable_of(value)
    source = f" ({variable} of the environment)" if variable else ""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if near:
        return f"there is no such key; did you mean {_join(path, near[0])}?{source}"
    return f"there is no such key; {path or 'the top level'} has {', '.join(known) or 'none'}{source}"


def _variable_of(value: Any) -> str:
    """Returns the first variable of the environment that a value or table came from; "" where it is of a file."""
    while isinstance(value, dict) and value:
        value = next(iter(value.values()))
    return value.variable if isinstance(value, Text) else ""


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _read(kind: Any, value: Any, path: str, field: Any, mistakes: Mistakes) -> Any:
    bare, optional = _bare(kind)
    if optional and value is None:
        return None
    if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
        return read_struct(bare, value, path, mistakes)
    origin, args = get_origin(bare), get_args(bare)
    if origin in {dict, Mapping} and _is_struct(args[1]):
        return _read_tables(args[1], value, path, mistakes)
    if origin in {tuple, list} and _is_struct(args[0]):
        return _read_array(args[0], value, path, mistakes)
    return _read_leaf(kind, value, path, field, mistakes)


def _read_tables(kind: type[S], value: Any, path: str, mistakes: Mistakes) -> dict[str, S | None]:
    value = _from_text(value)
    if not isinstance(value, Mapping):
        mistakes.add(path, f"is a table of tables; write [{path}.NAME], not {value!r}")
        return {}
    return {name: read_struct(kind, table, _join(path, name), mistakes) for name, table in value.items()}


def _read_array(kind: type[S], value: Any, path: str, mistakes: Mistakes) -> tuple[S | None, ...]:
    value = _from_text(value)
    if not isinstance(value, list):
        mistakes.add(path, f"is an array of tables; write [[{path}]] for each, not {value!r}")
        return ()
    return tuple(read_struct(kind, table, f"{path}[{i}]", mistakes) for i, table in enumerate(value))


def _read_leaf(kind: Any, value: Any, path: str, field: Any, mistakes: Mistakes) -> Any:
    textual = isinstance(value, Text)
    bare, _ = _bare(kind)
    if textual and get_origin(bare) in {tuple, list, set, frozenset, dict, Mapping}:
        value = _from_text(value)
    try:
        return msgspec.convert(
            str(value) if isinstance(value, Text) else value, kind, strict=not textual, dec_hook=_custom
        )
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        shown = "what was given" if bare in {Secret, Hash} else repr(str(value) if isinstance(value, Text) else value)
        mistakes.add(path, f"{_wanted(bare, error)}, not {shown}{_hint(field)}")
        return None


def _wanted(kind: Any, error: Exception) -> str:
    """Returns the values that a field takes, from its type or from msgspec's message."""
    if get_origin(kind) is typing.Literal:
        return f"expected one of {', '.join(map(repr, get_args(kind)))}"
    item = next(iter(get_args(kind)), None)
    if get_origin(item) is typing.Literal and isinstance(error, msgspec.ValidationError) and " enum " in str(error):
        return f"expected a list of {', '.join(map(repr, get_args(item)))}"
    text = str(error).split(" - at ", maxsplit=1)[0].split(", got ", maxsplit=1)[0]
    return f"{text[:1].lower()}{text[1:]}"


def _custom(kind: type, value: Any) -> Any:
    if kind in {Path, Secret, Hash} and isinstance(value, str) and value:
        return kind(value)
    raise ValueError("expected a text of at least one character")


def _from_text(value: Any) -> Any:
    """Parses text from the environment as a table or a list: JSON, or words joined by commas."""
    if not isinstance(value, Text):
        return value
    text = value.strip()
    if text[:1] in {"[", "{"}:
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return str(value)
    return [word.strip() for word in text.split(",")] if text else []


def _read_secret_files(
    fields: Mapping[str, Any], raw: Mapping[str, Any], path: str, mistakes: Mistakes
) -> tuple[dict[str, Any], set[str]]:
    """Replaces `NAME_file` of every secret NAME by the file's text, without the line's end; and those that failed."""
    given, spoiled = dict(raw), set[str]()
    for name, field in fields.items():
        if _bare(field.type)[0] is not Secret:
            continue
        file_key = f"{name}_file"
        if name in given and not isinstance(given[name], Text):
            mistakes.add(_join(path, name), f"a secret is not written here; write {file_key} = the path of a file")
            spoiled.add(name)
            del given[name]
        if file_key not in given:
            continue
        file = Path(str(given.pop(file_key)))
        try:
            text = file.read_text("utf-8") if file.stat().st_size <= SECRET_BYTES_MAX else ""
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8"
            mistakes.add(_join(path, file_key), f"{file} cannot be read ({why}); write the path of a readable file")
            spoiled.add(name)
            continue
        if not text.strip():
            what = f"{file} is empty or larger than {SECRET_BYTES_MAX} bytes; write the path of the secret's file"
            mistakes.add(_join(path, file_key), what)
            spoiled.add(name)
            continue
        given[name] = Text(text.rstrip("\r\n"))
    return given, spoiled


def _readable_names(fields: Mapping[str, Any]) -> list[str]:
    return [f"{name}_file" if _bare(field.type)[0] is Secret else name for name, field in fields.items()]


def _hint(field: Any) -> str:
    """Returns a field's meaning and its default, for the end of a message."""
    description = describe(field)
    default = field.default
    if any(DEFAULT_ELSEWHERE in (part.extra or {}) for part in _metas(field)):
        return f" ({description})"
    if isinstance(default, (str, int, float, Path)):
        shown = (
            str(default).lower() if isinstance(default, bool) else msgspec.json.encode(default, enc_hook=str).decode()
        )
        description = f"{description}; default {shown}" if description else f"default {shown}"
    return f" ({description})" if description else ""


def describe(field: Any) -> str:
    """Returns the description in a struct field's `Annotated[..., Meta(description=...)]`, "" when it has none."""
    return next((part.description for part in _metas(field) if part.description), "")


def _metas(field: Any) -> Sequence[msgspec.Meta]:
    return [part for part in getattr(field.type, "__metadata__", ()) if isinstance(part, msgspec.Meta)]


def _bare(kind: Any) -> tuple[Any, bool]:
    """Returns a type without `Annotated` and `| None`, and whether None is allowed."""
    if get_origin(kind) is typing.Annotated:
        return _bare(get_args(kind)[0])
    if get_origin(kind) in {typing.Union, types.UnionType}:
        others = [part for part in get_args(kind) if part is not type(None)]
        if len(others) == 1 and len(others) < len(get_args(kind)):
            return _bare(others[0])[0], True
    return kind, False


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
