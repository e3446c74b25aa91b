"""The controllers as others see them: a copy of their state, commands to their leader, heartbeats.

Store nodes, gateways and the command line import this room; it imports the wire.
"""
