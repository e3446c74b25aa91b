"""The client's interface: everything that can be asked of a store group, in this process or over the network.

A client (`client`) has six subjects. Each is a protocol in a file of its name, with the values that it takes and gives:

    store.log       appends frames, follows, reads and finds them; lists addresses
    store.queues    reads a queue, sets its retention, forgets it, announces messages that can be leased
    store.keys      gets, puts, transacts, lists and watches keys and values
    store.groups    has the offsets that consumer groups have committed
    store.leases    leases single messages of a queue, settles them, takes them back
    store.timers    has records that are to be stored later

Four clients have them. `LocalStore` (`store.local`) has the store in its own process: its subjects share a core, which
says whether it is open, runs work that may wait for a disk in threads, and waits for views and repairs. `RemoteStore`
(`store.remoting`) asks a node: `store.rpc` has the messages, `store.serving` answers over any client. `NearStore` is
one whose reads a replica near by answers. `ClusterStore` (`store.cluster`) has the clients of all groups: a call that
names a queue goes to the group of the queue; its keys, and where consumer groups are, are the home group's.

A call over the network is a row of the table in `store.rpc.table`, from which the client's and the server's methods are
made; where one does more, it is spelled by hand.

A method of a subject does one thing. Calls that hot paths repeat are bound once: `append = store.log.append`.

`handle` names a lease; `kv_rules` decides what a change of a key does, `kv_export` is a file of keys and values.
`message` is the message in the body of a record, which gateways write and Spark reads, and `devices` says which device
a message is of; no other room of the store imports them.

Imported by: store.*, adapters.amqp, adapters.cloudevents, adapters.coap, adapters.http, adapters.mqtt, gateway.*,
spark.dashboard, spark.decode, spark.source.
Imports: base, format.
"""
