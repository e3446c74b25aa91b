"""The cursors of consumer groups over the network."""

from store.api.groups import GroupCalls
from store.remoting.core import Remote
from store.remoting.stubs import stubs


@stubs
class RemoteGroups(GroupCalls):
    """`GroupCalls` over the network."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
