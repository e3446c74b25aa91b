"""Streams between nodes without gRPC: what `grpc.aio` gives for a stream, over a connection of its own.

A message over gRPC costs either end some 140 us and four changes of thread where this was measured, whatever is in it;
the store takes 40 us for a frame of 100 records, and a pipe 10 for a message. So what clients of a store node, its
replicas and its master say to each other goes through pipes, and so do the streams to controllers. All else, and
clients that have nothing but gRPC, find gRPC on the same port (docs/decisions/0020 and 0059).

`open_channel` and `PipeServer` stand in for `grpc.aio`'s channel and server: the same handlers are served either way,
and what a stream ends with is `AioRpcError`, status, details and trailing metadata.

Imported by: node, remoting, serving, controller.node, controller.wire.
Imports: base.listening.
"""

from store.base.pipes.channel import open_channel
from store.base.pipes.pipe import PipeSizes
from store.base.pipes.server import PipeServer

__all__ = ["PipeServer", "PipeSizes", "open_channel"]
