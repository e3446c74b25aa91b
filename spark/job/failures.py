"""The account that Spark gives of a failed query, in one line."""

import logging
import re

from spark.errors import DiskFull, SparkError

_LOG = logging.getLogger(__name__)
_ERROR_LINE = re.compile(r"[A-Za-z_][\w.]*: .")
_FULL, _OWN_WORDS = "No space left on device", "the disk of "
_OWN_CLASS = re.compile(r"^(?:spark|store)(?:\.\w+)+: ")  # of an error whose text is a sentence by itself


def gist(failure: str) -> str:
    """Returns the line of Spark's account that says why: the last Python error in it, else its first line.

    An error of Headgate's own is given without the name of its class.
    """
    return _OWN_CLASS.sub("", _last_error(failure))


def job_error(what: str, failure: str, disks: str) -> SparkError:
    """Returns the error of a job that failed; `disks` are the places that it writes to.

    Spark tells a full disk under its checkpoint or its scratch files in its own words. An error that is neither that
    nor one of Headgate's is logged with all that Spark says of it.
    """
    told = gist(failure)
    if _FULL not in failure and _OWN_CLASS.match(_last_error(failure)) is None:
        _LOG.error("%s: %s", what, failure)
    full = _FULL in failure and _OWN_WORDS not in told
    return DiskFull(disks) if full else SparkError(f"{what}: {told}")


def _last_error(failure: str) -> str:
    lines = failure.partition("=== Streaming Query ===")[0].partition("\nJVM stacktrace:")[0].splitlines()
    errors = [line for line in lines if _ERROR_LINE.match(line)]
    return errors[-1] if errors else next((line for line in lines if line.strip()), failure)
