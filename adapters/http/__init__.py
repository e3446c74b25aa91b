"""HTTP/1.1 and HTTP/2, carrying CloudEvents, plain messages and server-sent events."""
