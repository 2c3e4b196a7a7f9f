"""Keeps the directory informed that a replica is there, and that it is no more.

The directory's handle is kept: looking the actor up asks Ray's head, and waits for it on the event loop that serves requests. A call to a handle
waits for nobody but its own task, so replicas serve on while the directory, or Ray's head, is down.
"""

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayActorError, RayError

from deployments.cell.directory import REGISTER_EVERY_S, find_directory

if TYPE_CHECKING:
    from deployments.engine.replica import Replica

logger = logging.getLogger(__name__)

_ANSWER_S = 5.0
"""How long a call to the directory is waited for; the next one is made anyway."""


async def keep_registered(replica: "Replica", directory: Any) -> None:
    """Registers `replica` again and again while it is ready, then takes it off the list."""
    while not replica.left_ready.is_set():
        directory = await _tell(directory, "register", replica.facts, replica.epoch)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REGISTER_EVERY_S):
                await replica.left_ready.wait()
    await _tell(directory, "deregister", replica.facts.replica_id)


async def _tell(directory: Any, method: str, *arguments: object) -> Any:
    """Calls the directory, and returns the handle to call next time: that of its successor when it is gone for good."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            await getattr(directory, method).remote(*arguments)
    except RayActorError as error:
        logger.warning("the directory is gone (%s); looking for another", error)
        with contextlib.suppress(ValueError):
            return await asyncio.to_thread(find_directory)
    except (TimeoutError, RayError) as error:
        logger.warning("the directory did not answer to %s: %r", method, error)
    return directory
