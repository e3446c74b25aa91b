"""The messages by which `headgate serve --workers` directs its workers.

A message is msgpack of `WorkerOrders` behind its length. It has the whole configuration of the process that sends it,
secrets included, and so goes through a pipe that no other process has. A failure to send, or another kind of message,
raises `WorkerMessageError`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from struct import Struct
from typing import Any

import msgspec

from gateway.base.config_reader import Secret
from gateway.config.config import Config, adapter_factories
from gateway.port.adapter import AdapterFactory
from store.base.process_errors import HeadgateError

LENGTH = Struct("!I")  # of the message behind it
MESSAGE_BYTES_MAX = 64 * 1024 * 1024  # a configuration file of 1 MiB and the files that it names


class WorkerMessageError(HeadgateError):
    """Bytes that are no message to a worker, or an invalid configuration."""


class WorkerOrders(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker's orders: its configuration, and the Unix socket of its pages."""

    config: Config
    pages: Path


def encode(orders: WorkerOrders) -> bytes:
    """Returns the message with its length. Raises `WorkerMessageError`."""
    try:
        data = _encoder.encode(orders)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WorkerMessageError(f"the configuration cannot be sent to workers: {error}") from error
    if len(data) > MESSAGE_BYTES_MAX:
        raise WorkerMessageError(
            f"the configuration and the secrets in its files have {len(data)} bytes, and workers take "
            f"{MESSAGE_BYTES_MAX}; run headgate serve without --workers, or keep users in a cluster"
        )
    return LENGTH.pack(len(data)) + data


def check_length(prefix: bytes) -> int:
    """Returns the bytes of the message behind a length. Raises `WorkerMessageError`."""
    length: int = LENGTH.unpack(prefix)[0]
    if length > MESSAGE_BYTES_MAX:
        raise WorkerMessageError(f"a message of {length} bytes, and workers take {MESSAGE_BYTES_MAX}")
    return length


def decode(data: bytes, factories: Mapping[str, AdapterFactory] | None = None) -> WorkerOrders:
    """Returns the orders of a message without its length. Raises `WorkerMessageError`, `ConfigError`.

    The options of adapters get the types that `factories` have for them, by default the installed ones.
    """
    factories = adapter_factories() if factories is None else factories
    try:
        orders = _decoder.decode(data)
        options = {
            name: msgspec.convert(table, factories[name].options, dec_hook=_from_plain)
            for name, table in orders.config.adapters.items()
        }
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise WorkerMessageError(f"not a message to a worker: {error}") from error
    except KeyError as error:
        raise WorkerMessageError(f"the adapter {error} is not installed for workers") from error
    return msgspec.structs.replace(orders, config=msgspec.structs.replace(orders.config, adapters=options))


def _to_plain(value: Any) -> Any:
    if isinstance(value, Secret):
        return value.reveal()
    if isinstance(value, Path):
        return os.fsencode(value)  # a name of a file need not be text
    raise TypeError(f"a {type(value).__name__} is no value of a configuration")


def _from_plain(kind: type, value: Any) -> Any:
    if issubclass(kind, Secret) and isinstance(value, str):
        return kind(value)
    if kind is Path and isinstance(value, bytes):
        return Path(os.fsdecode(value))
    raise ValueError(f"expected a {kind.__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_to_plain)
_decoder = msgspec.msgpack.Decoder(WorkerOrders, dec_hook=_from_plain)
