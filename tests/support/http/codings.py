"""The content codings of HTTP, as a client applies them."""

import gzip
import zlib

import zstandard

ENCODE = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstandard.compress}
