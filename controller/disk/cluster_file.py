"""The file `cluster` beside a controller's log: the id of the cluster that the directory belongs to.

The log has it too; but a controller that was started again speaks to others before it knows how much of its log is
committed, and has to know by then which cluster it may speak to.
"""

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

logger = logging.getLogger(__name__)

_NAME = "cluster"
_ID = re.compile(r"[!-~]{1,64}\n")
LOOK_S = 1.0  # between two looks whether the id is known, if nothing happens
AGAIN_S = 1.0  # until a file that could not be written is written again


class ClusterFile:
    """The file in a directory; None: the id is kept nowhere. Raises OSError."""

    def __init__(self, directory: Path | None) -> None:
        self._path = None if directory is None else directory / _NAME
        self.id = self._load()  # empty: none is known, or none that can be read

    async def learn(self, known: Callable[[], str], moved: Callable[[float], Awaitable[None]]) -> None:
        """Keeps the id, durably, when it is known; `moved` waits for something to happen, for so many seconds at most.

        A disk that refuses the file is asked again until it takes it: the log has the id meanwhile.
        """
        while not (found := known()):
            await moved(LOOK_S)
        if self.id and self.id != found:
            logger.critical("the log in a directory of cluster %s is that of cluster %s", self.id, found)
        elif self._path is not None and not self.id:
            await self._keep_until_kept(self._path, found)
            self.id = found

    async def _keep_until_kept(self, path: Path, cluster: str) -> None:
        refused = False
        while True:
            try:
                await asyncio.to_thread(self._keep, path, cluster)
            except OSError as error:
                if not refused:
                    logger.warning(
                        "%s cannot be written: %s. Free space on the disk of controller.data_dir, or replace the disk: "
                        "without this file a controller that is restarted may accept controllers of another cluster",
                        path,
                        error,
                    )
                refused = True
                await asyncio.sleep(AGAIN_S)
            else:
                if refused:
                    logger.info("%s is written", path)
                return

    def _load(self) -> str:
        try:
            text = "" if self._path is None else self._path.read_bytes().decode("ascii", errors="replace")
        except FileNotFoundError:
            return ""
        return text.strip() if _ID.fullmatch(text) else ""

    def _keep(self, path: Path, cluster: str) -> None:
        new = path.with_name(_NAME + ".new")
        with new.open("wb") as file:
            file.write(f"{cluster}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
