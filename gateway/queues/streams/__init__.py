"""Queues of the type stream: read from the log at any offset, by any number of consumers, who take nothing away.

The room around it imports this one; it imports the port, the queue's consumers (`gateway.queues.pump`), how messages
are read (`gateway.queues.leaving.reading`) and the store's interface.
"""
