"""GPUs as their makers state them (`gpus.yaml` names the sources), and which quantizations run on which."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import ConfigDict, Field, TypeAdapter

Rate = Annotated[float, Field(gt=0, le=1e18)]

USABLE_SHARE = 0.985
"""Of the nominal memory, what CUDA reports as the total where no report is known.

Known: H100 0.990, RTX 3090 0.987, RTX 4090 0.985, RTX 5090 0.980."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. Bytes, bytes a second, and dense FLOP a second (None: no such units).

    `capability` is CUDA's compute capability times ten. `usable_bytes` is what CUDA reports as the total. `link` joins
    it to its neighbours in a node: bytes a second in one direction, and seconds a message. A spec's own
    entry has the same keys; its link is what messages reach, while the shipped ones state the data sheets', beside
    which `exchanges.csv` has measured times.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9-]{1,30}$")]
    title: Annotated[str, Field(min_length=1, max_length=60)]
    capability: Annotated[int, Field(ge=50, le=200)]
    memory_bytes: Annotated[int, Field(ge=1 << 30, le=1 << 42)]
    memory_bytes_per_s: Rate
    bf16_flops: Rate
    link_bytes_per_s: Rate
    fp8_flops: Rate | None = None
    fp4_flops: Rate | None = None
    usable_bytes: Annotated[int, Field(ge=1 << 30, le=1 << 42)] | None = None
    link: Literal["nvlink", "pcie"] = "pcie"
    link_latency_s: Annotated[float, Field(gt=0, le=1)] = 1e-5
    source: str = "the cluster spec"
    date: str = ""

    @property
    def total_bytes(self) -> int:
        """What CUDA reports as the GPU's memory, of which `gpu_memory_utilization` is a share."""
        return self.usable_bytes or int(self.memory_bytes * USABLE_SHARE)

    def runs(self, quantization: str) -> bool:
        """Whether vLLM has kernels for that quantization on this GPU. Raises KeyError for an unknown method."""
        return self.capability >= QUANTIZATIONS[quantization]


def _read() -> dict[str, Gpu]:
    entries = yaml.safe_load(Path(__file__).with_name("gpus.yaml").read_text(encoding="utf-8"))
    return {gpu.name: gpu for gpu in TypeAdapter(tuple[Gpu, ...]).validate_python(entries)}


GPUS: dict[str, Gpu] = _read()

QUANTIZATIONS = {
    "awq": 75,
    "compressed-tensors": 70,
    "experts_int8": 80,
    "fbgemm_fp8": 80,
    "fp8": 75,
    "gptq": 60,
    "modelopt": 80,
    "modelopt_fp4": 75,
    "mxfp4": 80,
}
"""The least compute capability by method: `get_min_capability` of vLLM 0.32's quantization configs, for those that a
`config.json` may name. Below 89, FP8 weights are multiplied in 16 bits (Marlin): they save memory, not time."""


def gpu_names(own: Iterable[Gpu] = ()) -> str:
    known = GPUS.keys() | {gpu.name.lower() for gpu in own}
    return f"{', '.join(sorted(known)).upper()}, or one of your own under `hardware.gpus`"


def gpu_named(name: str, own: Iterable[Gpu] = ()) -> Gpu:
    """The GPU of that name, in any case; those of `own` come first. Raises ValueError that says which there are."""
    own = tuple(own)
    found = (GPUS | {gpu.name.lower(): gpu for gpu in own}).get(name.lower())
    if found is None:
        raise ValueError(f"GPU {name!r} is unknown; allowed: {gpu_names(own)}")
    return found
