"""Reads bodies beside the event loop's other work: a small one at once, a large one in a thread, so that it never holds up the streams of others."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from deployments.gateway.endpoints import BodyKind
from deployments.gateway.inquiry import Inquiry, read_inquiry

_AT_ONCE_BYTES = 1 << 18
"""A body of no more bytes takes at most some milliseconds, and handing it to a thread a tenth of one."""


class Reader:
    """One thread, and not several: where it holds the interpreter's lock the loop waits for it, and would for each of them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "body-reader")

    async def read(self, kind: BodyKind, body: bytes, most_values: int) -> tuple[Inquiry, float]:
        """The inquiry in a body, and the seconds of CPU that it took. Raises ApiError."""
        if len(body) <= _AT_ONCE_BYTES:
            return _timed(kind, body, most_values)
        return await asyncio.get_running_loop().run_in_executor(self._thread, _timed, kind, body, most_values)


def _timed(kind: BodyKind, body: bytes, most_values: int) -> tuple[Inquiry, float]:
    began = time.thread_time()
    inquiry = read_inquiry(kind, body, most_values)
    return inquiry, time.thread_time() - began
