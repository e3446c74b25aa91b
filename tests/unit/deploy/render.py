"""Renders the chart with helm for the tests that read it: `make chart`."""

import subprocess

from tests.support.repository.chart import CHART, RENDERED, digest

made = subprocess.run(
    ["helm", "template", "headgate", str(CHART)], check=True, capture_output=True, text=True, timeout=60
).stdout
RENDERED.write_text(f"# The output of `helm template headgate`; by `make chart`.\n# of {digest()}\n{made}")
