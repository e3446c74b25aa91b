"""Plain TCP, in turns: one look at all sockets, one read of each that has something, one write of each answer.

`poller` looks at the sockets of a process, `transport` is what one connection writes to, `listening` opens ports and
accepts, `calls` reads and writes without giving the interpreter's lock away. What comes over TLS stays with the event
loop. `gateway.process.app` makes them; `gateway.runtime.connection` sees an asyncio transport, whichever it is.

Imported by: process, runtime, security.
Imports: store.base.
"""
