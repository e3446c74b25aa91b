"""Cluster metadata: topics, queues and their numbers, and who serves them."""
