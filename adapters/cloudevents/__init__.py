"""CloudEvents: how events are read from and written to the domain message. Shared by the adapters."""
