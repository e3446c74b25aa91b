"""The repository's own files: which modules there are, and which of them imports which."""
