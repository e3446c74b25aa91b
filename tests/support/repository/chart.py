"""The Helm chart, its rendered manifests, and the digest that tells whether these are of the chart."""

import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "headgate"
RENDERED = ROOT / "tests" / "unit" / "deploy" / "rendered.yaml"  # by `make chart`


def digest() -> str:
    found = hashlib.sha256()
    for path in sorted(CHART.rglob("*")):
        if path.is_file():
            found.update(f"{path.relative_to(CHART)}\n".encode() + path.read_bytes())
    return found.hexdigest()
