"""Plain TCP, in turns: one look at all sockets, one read of each that has something, one write of each answer.

`poller` looks at the sockets of a process, `transport` is one connection's output, `listening` opens ports and accepts.
`batches` reads and writes many sockets in one call, compiled (`_batches.c`) or in Python (`plain_batches`); `calls`
reads and writes one. All of them keep the interpreter's lock. TLS connections stay with the event loop.
`gateway.process.app` makes them; `gateway.runtime.connection` sees an asyncio transport, whichever it is.

Imported by: process, runtime, security.
Imports: store.base.
"""
