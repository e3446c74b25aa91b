"""The services of a node to the other nodes of its group, and to operators, on the port where it serves all else."""

import logging
from collections.abc import Callable
from typing import Any

import grpc

from controller.api.client import ControllerError
from store.base.errors import NotMaster, StoreClosed, StoreError
from store.base.listening import admit
from store.local.local import LocalStore
from store.node.replica.context import RoleServices
from store.replication.errors import BadMessage
from store.replication.messages import Hello, Refused, Why, decode, encode
from store.rpc import replica_wire as wire
from store.rpc.replica_wire import SwitchRequest, Verified, VerifyRequest

logger = logging.getLogger(__name__)

STREAMS_MAX = 64  # of replicas at the same time; a group has 16 replicas at most


class ReplicationService:
    """The handlers. `services.master` is asked while this node is master; `epoch` says the newest known epoch."""

    def __init__(self, group: int, services: RoleServices, epoch: Callable[[], int]) -> None:
        self._group = group
        self._services = services
        self._epoch = epoch
        self._streams = 0  # that have begun with a Hello; <= STREAMS_MAX

    def handlers(self) -> dict[str, Any]:
        """Returns handlers by method name; bytes go in and out as they are."""
        return {
            wire.REPLICATE: grpc.stream_stream_rpc_method_handler(self._replicate),
            wire.SNAPSHOT: grpc.unary_stream_rpc_method_handler(self._snapshot),
            wire.SEALS: grpc.unary_stream_rpc_method_handler(self._seals),
            wire.FETCH_RANGE: grpc.unary_stream_rpc_method_handler(self._fetch_range),
            wire.SWITCH_OVER: grpc.unary_unary_rpc_method_handler(self._switch_over),
            wire.VERIFY: grpc.unary_unary_rpc_method_handler(self._verify),
        }

    async def _replicate(self, _requests: object, context: Any) -> None:
        try:
            message = await context.read()
            if message is grpc.aio.EOF:
                return
            hello = decode(message)
            if not isinstance(hello, Hello):
                raise BadMessage("a stream begins with a Hello")
        except StoreError as error:
            await wire.ERRORS.refuse(context, error)
            return
        if self._streams >= STREAMS_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{STREAMS_MAX} replicas are served")
        self._streams += 1
        try:
            master = self._services.master
            if hello.group != self._group:
                why = Refused(
                    session=hello.session, epoch=0, why=Why.WRONG_GROUP, text=f"this is store group {self._group}"
                )
                await context.write(encode(why))
            elif master is None:
                why = Refused(session=hello.session, epoch=self._epoch(), why=Why.NOT_MASTER)
                await context.write(encode(why))
            else:
                admit(context)
                await master.attend(context, message)
        except StoreError as error:
            await wire.ERRORS.refuse(context, error)
        finally:
            self._streams -= 1

    async def _snapshot(self, request: bytes, context: Any) -> None:
        try:
            if self._services.master is None:
                raise NotMaster(f"this node is not the master of store group {self._group}")
            await self._services.master.send_snapshot(context, request)
        except StoreError as error:
            await wire.ERRORS.refuse(context, error)
        except OSError as error:
            logger.exception("a snapshot cannot be sent")
            await wire.ERRORS.refuse(context, StoreError(str(error)))

    async def _fetch_range(self, request: bytes, context: Any) -> None:
        try:
            if self._services.ranges is None:
                raise StoreClosed(f"this node has no replica of store group {self._group} open")
            admit(context)
            await self._services.ranges.send(request, context)
        except StoreError as error:
            await wire.ERRORS.refuse(context, error)
        except OSError as error:
            logger.warning("a range of the log cannot be sent: %s", error)
            await wire.ERRORS.refuse(context, StoreError(str(error)))

    async def _seals(self, request: bytes, context: Any) -> None:
        try:
            if self._services.ranges is None:
                raise StoreClosed(f"this node has no replica of store group {self._group} open")
            admit(context)
            await context.write(self._services.ranges.seals(request))
        except StoreError as error:
            await wire.ERRORS.refuse(context, error)

    async def _switch_over(self, request: bytes, context: Any) -> bytes:
        try:
            asked = wire.decode(request, SwitchRequest)
            admit(context)
            if asked.group != self._group or self._services.master is None:
                raise NotMaster(f"this node is not the master of store group {asked.group}")
            return wire.encode(await self._services.master.switch_over(asked.target))
        except (StoreError, ControllerError) as error:
            await wire.ERRORS.refuse(context, error)

    async def _verify(self, request: bytes, context: Any) -> bytes:
        try:
            asked = wire.decode(request, VerifyRequest)
            admit(context)
            store = None if self._services.rpc is None else self._services.rpc.store
            if asked.group != self._group or not isinstance(store, LocalStore):
                raise StoreClosed(f"this node has no replica of store group {asked.group} open")
            if asked.begin:
                store.verify()
            open_, ever = len(store.damages), store.damages_repaired
            return wire.encode(Verified(store.replication.first, store.replication.end, store.hastened, open_, ever))
        except StoreError as error:
            await wire.ERRORS.refuse(context, error)
