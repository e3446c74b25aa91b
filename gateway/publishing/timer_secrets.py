"""The secrets that sign tickets of delayed messages (`gateway.publishing.delayed`), one for each principal.

All gateways of a cluster derive them from the same key, which survives a restart. The id that other gateways know this
one by is derived from it too.
"""

import hmac
import secrets

from store.api.client import StoreClient
from store.base import logs
from store.base.errors import RevisionConflict, StoreError

_SPACE = "$timers"  # the KV's namespace of the key that secrets are made with
_KEY_BYTES = 32
_GATEWAY = "\0gateway"  # the id is made of it; no principal has such a name
_ID_BYTES = 8
_MADE_MAX = 4_096  # secrets remembered: making one takes longer than the rest of letting a connection in

log = logs.get(__name__)


class TimerSecrets:
    """Makes the secrets of principals, by a key that all gateways of a cluster share."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._made: dict[str, bytes] = {}

    @property
    def gateway_id(self) -> str:
        """Returns the id that other gateways know this one by, or the cluster it belongs to."""
        return self.of(_GATEWAY)[:_ID_BYTES].hex()

    async def load(self, store: StoreClient) -> None:
        """Gets the key from the store, or puts this one there; without it tickets are good for this process alone."""
        try:
            while (entry := await store.keys.get("key", namespace=_SPACE)) is None:
                try:
                    await store.keys.put("key", self._key, expected_revision=0, namespace=_SPACE)
                except RevisionConflict:  # another gateway was faster
                    continue
                return
            self._key = entry.value
            self._made.clear()
        except StoreError as error:
            log.warning(
                "the key of timers' tickets cannot be stored: this process alone takes the tickets that it gives",
                error=str(error),
            )

    def of(self, principal: str) -> bytes:
        """Returns the secret of a principal."""
        made = self._made.get(principal)
        if made is None:
            if len(self._made) >= _MADE_MAX:
                self._made.clear()
            made = self._made[principal] = hmac.digest(self._key, principal.encode(), "sha256")
        return made
