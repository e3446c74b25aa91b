"""Streams between nodes without gRPC: the streams of `grpc.aio`, each over a connection of its own.

A message over gRPC costs either end some 140 us and four changes of thread where this was measured, whatever its size;
the store takes 40 us for a frame of 100 records, and a pipe 10 for a message. So the streams between a store node and
its clients, replicas and master go through pipes, and so do the streams to controllers. Other calls, and clients that
only have gRPC, find gRPC on the same port (docs/decisions/0020 and 0059).

`open_channel` and `PipeServer` stand in for `grpc.aio`'s channel and server: the same handlers are served either way,
and a stream ends with an `AioRpcError` with status, details and trailing metadata.

Imported by: node, remoting, serving, controller.node, controller.wire, gateway.operating.
Imports: base.listening.
"""

from store.base.pipes.channel import open_channel
from store.base.pipes.pipe import PipeSizes
from store.base.pipes.server import PipeServer

__all__ = ["PipeServer", "PipeSizes", "open_channel"]
