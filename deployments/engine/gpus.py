"""How busy a replica's GPUs are, and how much of their memory is in use, by NVML (vLLM carries pynvml)."""

import asyncio
import logging
import os
from collections.abc import Iterator
from typing import Any

from deployments.telemetry import table
from deployments.telemetry.table import Sample

logger = logging.getLogger(__name__)
SAMPLE_S = 10.0


class Gpus:
    """The GPUs that this process was given (`CUDA_VISIBLE_DEVICES`; all of the machine without it), by the index or
    UUID that names them there. Nothing where there is no GPU, no driver, or one that cannot say."""

    def __init__(self) -> None:
        self._use: dict[str, tuple[float, int]] = {}
        """Of each: the share of the last moment in which a kernel ran, and bytes."""
        self._handles: dict[str, Any] = {}
        try:
            from vllm.third_party import pynvml

            self._nvml = pynvml
            pynvml.nvmlInit()
            given = os.environ.get("CUDA_VISIBLE_DEVICES")
            names = [str(index) for index in range(pynvml.nvmlDeviceGetCount())] if given is None else given.split(",")
            for name in filter(None, names):
                by = pynvml.nvmlDeviceGetHandleByIndex if name.isdigit() else pynvml.nvmlDeviceGetHandleByUUID
                self._handles[name] = by(int(name) if name.isdigit() else name)
        except Exception as error:  # no vLLM, no library of the driver, or whatever NVML raises
            logger.info("GPUs are not watched: %r", error)

    async def run(self) -> None:
        """Looks every `SAMPLE_S`. In a thread: a driver may take its time."""
        while self._handles:
            try:
                await asyncio.to_thread(self.look)
            except Exception as error:
                logger.warning("GPUs are not watched any more: %r", error)
                self._use = {}
                return
            await asyncio.sleep(SAMPLE_S)

    def look(self) -> None:
        """Raises whatever NVML does."""
        nvml = self._nvml
        self._use = {
            name: (nvml.nvmlDeviceGetUtilizationRates(one).gpu / 100, int(nvml.nvmlDeviceGetMemoryInfo(one).used))
            for name, one in self._handles.items()
        }

    def samples(self) -> Iterator[Sample]:
        for name, (share, used) in self._use.items():
            yield table.GPU_BUSY, (name,), share
            yield table.GPU_MEMORY, (name,), used
