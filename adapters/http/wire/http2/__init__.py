"""HTTP/2 (RFC 9113): frames, header blocks, streams and their windows, on the h2 library.

Imported by: http.
Imports: http.wire.
"""
