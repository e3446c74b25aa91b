"""The account that Spark gives of a failed query, in one line."""

import re

_ERROR_LINE = re.compile(r"[A-Za-z_][\w.]*: .")


def gist(failure: str) -> str:
    """Returns the line of Spark's account that says why: the last Python error in it, else its first line."""
    lines = failure.partition("=== Streaming Query ===")[0].partition("\nJVM stacktrace:")[0].splitlines()
    errors = [line for line in lines if _ERROR_LINE.match(line)]
    return errors[-1] if errors else next((line for line in lines if line.strip()), failure)
