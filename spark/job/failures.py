"""The account that Spark gives of a failed query, in one line."""

import re

from spark.errors import DiskFull, SparkError

_ERROR_LINE = re.compile(r"[A-Za-z_][\w.]*: .")
_FULL, _OWN_WORDS = "No space left on device", "the disk of "
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


def job_error(what: str, failure: str, disks: str) -> SparkError:
    """Returns the error of a job that failed; `disks` are the places that it writes to.

    Spark tells a full disk under its checkpoint or its scratch files in its own words.
    """
    told = gist(failure)
    full = _FULL in failure and _OWN_WORDS not in told
    return DiskFull(disks) if full else SparkError(f"{what}: {told}")
