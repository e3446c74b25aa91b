"""The dashboard of the demonstration, where its extra is installed: a process of its own, which nothing waits for."""

import importlib.util
import re
from pathlib import Path

from deploy.demo.children import launch, stop
from deploy.demo.plan import Target
from gateway.process.child import Child

NEEDS = ("dash", "dash_mantine_components", "deltalake", "duckdb", "pyarrow", "waitress")
_READY = re.compile(r"^dashboard: (http\S+)$", re.MULTILINE)


class Dashboard:
    """`headgate dashboard`, and its link once it listens."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._told = False

    @classmethod
    def start(cls, target: Target, tables: Path, logs: Path) -> "Dashboard | None":
        """Starts it; None where the extra is missing."""
        if any(importlib.util.find_spec(name) is None for name in NEEDS):
            return None
        where = ("--tables", str(tables), "--admin", target.admin, "--port-offset", str(target.port_offset))
        return cls(launch("dashboard", "gateway.cli", "dashboard", *where, logs=logs))

    def news(self) -> str:
        """Returns, once, its link when it listens, or why it has ended; nothing before and after."""
        if self._told:
            return ""
        if not self._child.running:
            self._told = True
            return f"the dashboard is left out: {self._child.last_words()}"
        link = self.link()
        self._told = bool(link)
        return f"dashboard: {link}" if link else ""

    def link(self) -> str:
        """Returns its link once it listens; empty before. Blocking."""
        assert self._child.log is not None
        found = _READY.search(self._child.log.read_text("utf-8", "replace"))
        return found[1] if found else ""

    async def stop(self) -> None:
        """Ends it."""
        await stop(self._child)
