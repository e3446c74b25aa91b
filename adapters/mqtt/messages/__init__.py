"""Publications without a connection: messages, events, Sparkplug, topics that ask for a delay.

The rooms of connections import this one; it imports the codec and the gateway's domain.
"""
