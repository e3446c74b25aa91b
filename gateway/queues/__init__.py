"""Named queues and exchanges after AMQP 0-9-1, and the queues of shared subscriptions.

The runtime imports this room; it imports publishing and ownership.
"""
