"""The Python that a local Spark starts its workers with.

Spark puts its own archive of PySpark before the installed package. Python compiles a module of an archive again in
every process: a worker then takes three times as long to start (1.5 s of a processor against 0.5), and Spark gives a
reader of a stream 10 s for that, which a busy machine may exceed at every attempt.
"""

import atexit
import os
import shlex
import shutil
import sys
from pathlib import Path
from tempfile import mkdtemp

import pyspark

_SCRIPT = """#!/bin/sh
set -f
without= IFS=:
for entry in $PYTHONPATH; do
    case $entry in
        */pyspark.zip) ;;
        *) without=${{without:+$without:}}$entry ;;
    esac
done
export PYTHONPATH="$without"
exec {python} "$@"
"""


def worker_python() -> str:
    """Returns the path of a command that is this Python without Spark's archive; it is removed when this process ends.

    Returns this Python itself where PySpark is not installed beside it, or temporary files cannot be run.
    """
    if not Path(pyspark.__file__).is_file():  # it was imported from the archive
        return sys.executable
    directory = Path(mkdtemp(prefix="headgate-python-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    command = directory / "python"
    command.write_text(_SCRIPT.format(python=shlex.quote(sys.executable)))
    command.chmod(0o700)
    return str(command) if os.access(command, os.X_OK) else sys.executable
