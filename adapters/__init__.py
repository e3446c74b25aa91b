"""Wire protocols as sans-IO state machines: bytes to domain messages and back."""
