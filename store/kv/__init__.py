"""The key-value store: its rules, what is ahead of its view, reading, watching, and files that hold a copy of it."""
