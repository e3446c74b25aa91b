"""Keys of the replicated KV that are made of a peer's text."""

from gateway.domain.address import hash64

DEFAULT_NAMESPACE = "default"  # where a client names none
RETAINED_NAMESPACE = "retained"
KEY_BYTES_MAX = 480  # the store's limit for a key
_KEPT_BYTES = 400  # of a text too long for a key; a hash stands for the rest


def kv_key(namespace: str, text: str) -> str:
    """Returns the key `namespace/text`, shortened reversibly enough: equal texts have equal keys, others do not.

    A text that is too long keeps its beginning and ends in `~` and its hash, so that a search by prefix still finds it
    as long as the prefix is no longer than the kept part.
    """
    key = f"{namespace}/{text}"
    if len(key) <= KEY_BYTES_MAX // 4 or len(key.encode("utf-8", "surrogatepass")) <= KEY_BYTES_MAX:
        return key
    return f"{_cut(key)}~{hash64(text):016x}"


def retained_key(address: str) -> str:
    """Returns the key of the retained message of an address."""
    return kv_key(RETAINED_NAMESPACE, address)


def literal_prefix(namespace: str, pattern: str) -> str:
    """Returns the common prefix of the keys of all addresses that a filter matches."""
    kept: list[str] = []
    for level in pattern.split("/"):
        if level in {"+", "#"}:
            # "a/#" matches "a" itself, so the slash before it is not certain.
            return _cut(f"{namespace}/" + "/".join(kept) + ("/" if level == "+" and kept else ""))
        kept.append(level)
    return _cut(f"{namespace}/" + "/".join(kept))


def _cut(text: str) -> str:
    return text.encode("utf-8", "surrogatepass")[:_KEPT_BYTES].decode("utf-8", "ignore")
