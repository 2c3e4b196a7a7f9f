"""What the directory does about starts: replicas tell it how far they are, `raylane up` and others ask.

`StartCalls` is a part of the directory's actor (`directory.py`): its methods are called through Ray.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from cluster.versions import ENGINE, differences, versions_here
from deployments.cell.lifecycle_log import write_story
from deployments.starts.start import CellStarts, ReplicaStart, StartReport
from deployments.starts.tracker import StartTracker

log = logging.getLogger("raylane.directory")


class StartCalls:
    """`ended` is called with each start that has ended, well or not, `publish` at each news. `began_unix_s` as
    StartTracker has it."""

    def __init__(
        self,
        folder: Path | None,
        began_unix_s: float | None,
        ended: Callable[[ReplicaStart], None],
        publish: Callable[[], Awaitable[None]],
    ) -> None:
        self._starts = StartTracker(began_unix_s)
        self._folder = folder
        self._start_ended = ended
        self._publish_starts = publish

    async def version_differences(self, found: Mapping[str, str]) -> list[str]:
        """What a node has in another version than the head has now, or lacks. Where the head or the node has no engine,
        engines are not compared."""
        needed = await asyncio.to_thread(versions_here, fresh=True)
        return differences(
            {name: version for name, version in needed.items() if name != ENGINE or name in found}, found
        )

    async def asked(self, replicas: Mapping[str, int]) -> None:
        """So many replicas of these models are requested from Serve."""
        for model, number in replicas.items():
            self._starts.asked(model, number, time.time())

    async def start_wait_s(self, model: str) -> float:
        """How long a replica waits before it begins its start, after others of the model failed (seconds)."""
        return self._starts.wait_s(model, time.time())

    async def starting(self, report: StartReport) -> None:
        """A replica starts, and says how far it is."""
        if self._starts.report(report, time.time()):
            await self._publish_starts()

    async def started(self, report: StartReport) -> None:
        """A replica is ready: it registers next."""
        self._start_ended(self._starts.ready(report, time.time()))
        await self._publish_starts()

    async def start_failed(self, report: StartReport, cause: str, story: str) -> None:
        """A replica could not start; `story` has all that is known of it."""
        file = write_story(self._folder, report.model, story)
        await self._failed(self._starts.failed(report, cause, file, time.time()))

    async def starts(self) -> CellStarts:
        return self._starts.starts()

    async def give_up_starts(self) -> None:
        """Those that tell nothing any more have failed."""
        for start in self._starts.sweep(time.time()):
            await self._failed(start)

    async def _failed(self, start: ReplicaStart) -> None:
        log.warning("replica %s did not start: %s: %s", start.replica_id, start.phase, start.cause)
        self._start_ended(start)
        await self._publish_starts()
