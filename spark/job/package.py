"""The package that `spark-submit --py-files` ships: the part of Headgate that executors need, as a zip of Python alone.

The packages that Headgate itself needs (msgspec, grpcio, numpy, pyarrow and the like) are the workers' own, installed
there or shipped as a packed virtual environment: they have parts that are built for a machine.
"""

import importlib
import zipfile
from pathlib import Path
from typing import Final

PACKAGE: Final = "headgate.zip"
PACKAGES: Final = ("spark", "store", "controller", "pyspark_headgate")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the same zip of the same files


def write_package(where: Path) -> int:
    """Writes the zip, and returns how many modules are in it. Raises OSError."""
    partial = where.with_name(f".{where.name}.partial")
    count = 0
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as package:
            for name in PACKAGES:
                root = Path(next(iter(importlib.import_module(name).__path__)))
                for path in sorted(root.rglob("*")):
                    if path.suffix == ".py" or path.name == "py.typed":
                        inner = zipfile.ZipInfo(str(Path(name) / path.relative_to(root)), _EPOCH)
                        package.writestr(inner, path.read_bytes(), zipfile.ZIP_DEFLATED)
                        count += 1
        partial.replace(where)
    finally:
        partial.unlink(missing_ok=True)
    return count
