"""The client's interface: everything that can be asked of a store group, in this process or over the network.

`client` is the interface, `handle` names a lease, `timer_key` a timer; `kv_rules` decides what a change of a key does,
`kv_export` is a file of keys and values. `message` is the message in the body of a record, which gateways write and
Spark reads, and `devices` says which device a message is of; no other room of the store imports them. Everybody may
import this room; it imports `store.base` and `store.format`.
"""
