"""Sinks of subscriptions at brokers: events published over MQTT and AMQP 0-9-1 (`gateway.push.sender`).

`kinds` says which protocols there are, and checks subscriptions; it imports the senders when a subscription needs one.
A sender has one connection (`connections`), which goes where `gateway.push.guard` allows and nowhere else. It does not
connect again by itself: the outbox of the subscription decides when the next attempt is.

Imported by: process, remote.
Imports: base, bridges.amqp, bridges.shared, domain, port, push, store.api, store.base.
"""
