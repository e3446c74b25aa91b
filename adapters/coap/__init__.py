"""CoAP (RFC 7252) over UDP."""
