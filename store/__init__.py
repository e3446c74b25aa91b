"""The store node: one commit log, and views of it in LMDB."""
