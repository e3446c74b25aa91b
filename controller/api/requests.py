"""Requests that the controllers' leader answers by itself: nothing of them is in the log as it was asked."""

from typing import Annotated

from msgspec import Meta

from controller.api.client import ControllerRequest, Group, KnownMetadata, Service

TEXT_CHARS_MAX = 1_024  # of an address, or an error
Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
Number = Annotated[int, Meta(ge=0, le=1 << 62)]


class Elect(ControllerRequest[Group], frozen=True, kw_only=True, tag="elect"):
    """Make a replica of the SyncStateSet master: this one, or the best one that is not master now.

    Fenced by the epochs given, if any; without `master_epoch` the same request again elects again. `unclean`: one that
    is not in the set, where no replica of the set is alive; frames that it lacks are lost. Raises `UnknownGroup`,
    `UnknownReplica`, `StaleEpoch`, `NotElectable`: as when it is master already and serves.
    """

    group: int
    candidate: int | None = None
    master_epoch: int | None = None
    sync_epoch: int | None = None
    unclean: bool = False


class AddMember(ControllerRequest[None], frozen=True, kw_only=True, tag="add_member"):
    """Add a controller, which votes when it has caught up; or say where it is now. Raises `ChangeRefused`.

    With another incarnation than the member's it takes the place of that one, if that one sends nothing. `kept`: its
    directory is that of the member, from before there were incarnations.
    """

    id: Annotated[int, Meta(ge=1, le=1 << 62)]
    address: Text
    incarnation: Text = ""
    kept: bool = False


class RemoveMember(ControllerRequest[None], frozen=True, kw_only=True, tag="remove_member"):
    """Remove a controller, dead or alive, forever; or say again that it is gone. Raises `ChangeRefused`."""

    id: Number


class Transfer(ControllerRequest[None], frozen=True, kw_only=True, tag="transfer"):
    """Ask the leader to let another controller lead. Raises `TransferRefused`."""

    to: Number


class Barrier(ControllerRequest[None], frozen=True, kw_only=True, tag="barrier"):
    """Do nothing: nothing that was done before has a greater index than the answer."""


class CompareMetadata(ControllerRequest[None], frozen=True, kw_only=True, tag="compare_metadata"):
    """Check that the controllers have metadata that is known elsewhere. Raises `MetadataForgotten`."""

    known: KnownMetadata


class AskService(ControllerRequest[Service], frozen=True, kw_only=True, tag="ask_service"):
    """Ask whether a group is served (see `controller.elections.serving`)."""

    group: Number
