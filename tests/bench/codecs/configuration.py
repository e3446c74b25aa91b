"""The configuration: `gateway.base.config_reader` beside msgspec alone and pydantic, on models of the same fields.

A configuration is read once, at the start, so what counts is what an operator is told.
"""

import tomllib
import types
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from gateway.base.config_reader import Hash, Mistakes, Secret, read_struct
from gateway.config.config import Config
from tests.bench.codecs.subject import Subject, Work

EXAMPLE = Path(__file__).parents[3] / "headgate.example.toml"
MISTAKEN = {
    "gateway": {"max_mesage_bytes": 1, "connections_max": 0},
    "store": {"data_dir": 7, "timer_horizon_days": "ten"},
    "log": {"level": "loud"},
}


def example() -> dict[str, Any]:
    """Returns the tables of the example, those of adapters left out: which there are depends on what is installed."""
    tables = tomllib.loads(EXAMPLE.read_text("utf-8"))
    return {name: table for name, table in tables.items() if name not in {"listeners", "adapters"}}


def ours(tables: Mapping[str, Any]) -> Any:
    """Reads tables; raises all mistakes."""
    mistakes = Mistakes()
    found = read_struct(Config, tables, "", mistakes)
    if mistakes.lines:
        raise ValueError("\n".join(mistakes.lines))
    return found


def _text(kind: type, value: Any) -> Any:
    if isinstance(value, str):
        return kind(value)
    raise ValueError("expected a text")


def with_msgspec(tables: Mapping[str, Any]) -> Any:
    """Reads tables; raises the first mistake. The structs do not forbid keys that do not exist."""
    return msgspec.convert(tables, Config, dec_hook=_text)


@cache
def _model(kind: type) -> Any:
    import pydantic

    fields = {}
    for field in msgspec.structs.fields(kind):
        default = pydantic.Field(default_factory=field.default_factory) if field.default is msgspec.NODEFAULT else None
        if field.required:
            fields[field.name] = (_kind(field.type), ...)
        else:
            fields[field.name] = (_kind(field.type), field.default if default is None else default)
    return pydantic.create_model(kind.__name__, __config__={"extra": "forbid", "regex_engine": "python-re"}, **fields)


def _kind(kind: Any) -> Any:
    """Returns a field's type in pydantic's terms."""
    import pydantic

    if kind in {Secret, Hash}:
        return pydantic.SecretStr
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _model(kind)
    if typing.get_origin(kind) is typing.Annotated:
        bare, *metas = typing.get_args(kind)
        limits = {}
        for meta in metas:
            for name in ("ge", "gt", "le", "lt", "pattern", "min_length", "max_length", "description"):
                if getattr(meta, name, None) is not None:
                    limits[name] = getattr(meta, name)
        return typing.Annotated[_kind(bare), pydantic.Field(**limits)]
    if (arguments := typing.get_args(kind)) and typing.get_origin(kind) is not typing.Literal:
        inner = tuple(one if one is Ellipsis else _kind(one) for one in arguments)
        origin = typing.get_origin(kind)
        return typing.Union[inner] if origin is types.UnionType else origin[inner]  # noqa: UP007
    return kind


def with_pydantic(tables: Mapping[str, Any]) -> Any:
    """Reads tables; raises all mistakes."""
    return _model(Config).model_validate(tables)


def _said(read: Any) -> str:
    try:
        read(MISTAKEN)
    except ValueError as error:
        return str(error)
    raise AssertionError("the mistakes were taken")


def subject() -> Subject:
    """Returns the comparison."""
    readers = {"ours": ours, "msgspec": with_msgspec, "pydantic": with_pydantic}
    tables = example()
    work = Work(
        "read the example's tables", 1, {name: lambda read=read: read(tables) for name, read in readers.items()}
    )
    says = {name: lambda read=read: _said(read) for name, read in readers.items()}
    imports = {"ours": "gateway.base.config_reader", "msgspec": "msgspec", "pydantic": "pydantic.main"}
    return Subject([work], imports=imports, says=says)
