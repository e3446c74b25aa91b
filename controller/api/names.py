"""Limits on the text that a cluster's metadata holds, and ids as text."""

from collections.abc import Iterable

from controller.api.client import ControllerError

TOPIC_NAME_BYTES_MAX = 255


def check_name(name: str, bytes_max: int) -> None:
    """Refuses an empty name, one that is too long, and one that is no text. Raises `ControllerError`."""
    if not name:
        raise ControllerError(f"a name has 1 to {bytes_max} bytes")
    check_text(name, bytes_max, "a name")


def check_text(text: str, bytes_max: int, what: str) -> None:
    """Refuses text that is too long, or has lone surrogates. Raises `ControllerError`."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise ControllerError(f"{what} is not Unicode text") from error
    if size > bytes_max:
        raise ControllerError(f"{what} has at most {bytes_max} bytes, not {size}")


def listed(ids: Iterable[int]) -> str:
    """Returns ids as a part of a sentence."""
    return ", ".join(map(str, ids)) or "none"


def no_group(number: int) -> str:
    """Returns what to do where a node waits for a store group that the cluster does not have."""
    return f"the cluster has no store group {number} yet: headgate cluster groups add {number} adds it"
