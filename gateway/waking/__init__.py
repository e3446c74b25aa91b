"""What a process does that was stopped and goes on: it is heard of by the others before it reads what has come
meanwhile.

`awake` notices the pause and holds input; `gateway.connection` asks it at each read of a connection that has a
session, and `gateway.hub` runs it. Imports nothing of the gateway but its log. Nothing is right only because of
this: what is late is compared where it is stored (docs/decisions/0034). It spares clients what they would have twice
at QoS 1.
"""
