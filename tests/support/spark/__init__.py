"""The telemetry job for tests: passes over all buckets in this process, and the windows counted by the book.

Everything in `tests` may import it. It imports the product alone.
"""
