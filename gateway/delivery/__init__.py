"""From the logs to subscribers: lanes, catching up, and searches for messages and last values.

Sessions and the runtime import this room; it imports the port and the store's client.
"""
