"""The account that Spark gives of a failed query, in one line."""

import re

_ERROR_LINE = re.compile(r"[A-Za-z_][\w.]*: .")
_OWN_CLASS = re.compile(r"^(?:spark|store)(?:\.\w+)+: ")  # of an error whose text is a sentence by itself


def gist(failure: str) -> str:
    """Returns the line of Spark's account that says why: the last Python error in it, else its first line.

    An error of Headgate's own is given without the name of its class.
    """
    lines = failure.partition("=== Streaming Query ===")[0].partition("\nJVM stacktrace:")[0].splitlines()
    errors = [line for line in lines if _ERROR_LINE.match(line)]
    if not errors:
        return next((line for line in lines if line.strip()), failure)
    return _OWN_CLASS.sub("", errors[-1])
