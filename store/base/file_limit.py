"""The limit of files that this process may open."""

import resource

__all__ = ["raise_file_limit"]


def raise_file_limit() -> None:
    """Lets this process open as many files as it may: every connection is one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
