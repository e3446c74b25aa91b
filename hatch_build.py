"""Compiles `gateway/sockets/_batches.c` when the project is installed, where that is possible (docs/decisions/0057).

Hatchling runs this for every wheel. An editable install tries it, and goes on without where there is no C compiler or
no Python header: `gateway.sockets.batches` then uses Python. Other wheels stay free of compiled code, and so one for
all platforms, unless `HEADGATE_COMPILE=1` asks for it; then it must succeed. `CC` and `CFLAGS` are respected.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "gateway/sockets/_batches.c"
BUILT = "gateway/sockets/_batches.abi3.so"
COMPILE_S_MAX = 120.0
LOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("_batches", sys.argv[1])
spec.loader.exec_module(importlib.util.module_from_spec(spec))
"""


class CustomBuildHook(BuildHookInterface[Any]):
    """The build of the compiled calls, for hatchling."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles before a wheel is put together. Raises RuntimeError where it was asked for and is impossible."""
        asked = os.environ.get("HEADGATE_COMPILE") == "1"
        if version != "editable" and not asked:
            return
        error = compile_calls(Path(self.root))
        if error and asked:
            raise RuntimeError(f"HEADGATE_COMPILE=1, and {SOURCE} cannot be compiled: {error}")
        if error:
            self.app.display_warning(f"{SOURCE} is not compiled, Python does its work: {error}")
        elif version != "editable":
            build_data["artifacts"].append(BUILT)
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def compile_calls(root: Path) -> str:
    """Compiles the calls in place, and removes an older build of them. Returns why that is impossible, or nothing."""
    built = root / BUILT
    new = built.with_name(f"_batches.{os.getpid()}.so")
    built.unlink(missing_ok=True)
    if sys.platform != "linux":
        return "they are for Linux"
    command = [
        *shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"),
        *("-O2", "-fPIC", "-shared", "-Wall", "-Wextra"),
        *shlex.split(os.environ.get("CFLAGS", "")),
        *(f"-I{sysconfig.get_path(name)}" for name in ("include", "platinclude")),
        *(str(root / SOURCE), "-o", str(new)),
    ]
    try:
        for each in (command, [sys.executable, "-c", LOAD, str(new)]):
            done = subprocess.run(each, capture_output=True, text=True, timeout=COMPILE_S_MAX, check=False)  # noqa: S603 - a compiler
            if done.returncode:
                return f"{each[0]} has failed: {done.stderr.strip()[-400:] or done.returncode}"
        new.replace(built)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        new.unlink(missing_ok=True)
    return ""


if __name__ == "__main__":
    sys.exit(compile_calls(Path(__file__).parent))
