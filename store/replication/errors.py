"""The errors that replication raises."""

from store.base.errors import NotWritable, StoreError


class NotEnoughInSync(NotWritable):
    """Not stored: fewer replicas are in sync and answer than an acknowledgement needs."""

    def __init__(self, in_sync: int, needed: int, *, damaged: int = 0) -> None:
        others = f" ({damaged} more with damaged logs, which are being repaired)" if damaged else ""
        replicas = "1 replica" if in_sync == 1 else f"{in_sync} replicas"
        super().__init__(f"{replicas} in sync{others}, {needed} are needed")
        self.in_sync, self.needed = in_sync, needed


class SwitchingOver(NotWritable):
    """Not stored: the master takes nothing more, because it is handing over to `target`."""

    def __init__(self, target: int) -> None:
        super().__init__(f"handing over to replica {target}")
        self.target = target


class CannotSwitchOver(StoreError):
    """The replica named cannot take over: it is not in sync, or another replica is about to."""


class BadMessage(StoreError):
    """Bytes or fields that are no message of the replication protocol, or not one for here and now."""


class BadEpochs(StoreError):
    """A list of epochs that is damaged or contradicts itself."""
