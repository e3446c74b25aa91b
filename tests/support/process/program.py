"""The program `headgate` in the process of a test: to start Python for a command costs more than the command.

`tests/unit/gateway/cli/test_cli_end_to_end.py` starts it in processes of its own.
"""

import io
import sys
from subprocess import CompletedProcess
from unittest.mock import patch

from gateway.cli import main


def headgate(*arguments: str, stdin: bytes = b"") -> CompletedProcess[bytes]:
    """Runs a command to its end; returns its exit status and what it wrote, to files and no terminal."""
    given, out, err = io.BytesIO(stdin), io.BytesIO(), io.BytesIO()
    files = {"stdin": given, "stdout": out, "stderr": err}
    streams = {name: io.TextIOWrapper(file, "utf-8", write_through=True) for name, file in files.items()}
    status = 0
    with patch.multiple(sys, argv=["headgate", *arguments], **streams):
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
    return CompletedProcess(arguments, status, out.getvalue(), err.getvalue())
