"""GPUs as their makers state them: memory, bandwidth, dense FLOP/s, interconnect, power. Facts, not measurements.

Source: the systems table of ai-dynamo/aiconfigurator (Apache-2.0), August 2026; memory is what the device reports where
that table has it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Bytes and bytes a second, FLOP a second without sparsity (`fp8_flops` None: no such units), the
    interconnect to its neighbours in one node (bytes a second, one direction), watts."""

    name: str
    title: str
    memory_bytes: int
    memory_bytes_per_s: float
    bf16_flops: float
    fp8_flops: float | None
    link_bytes_per_s: float
    watts: float


_GPUS = (
    Gpu("a100-80g-pcie", "A100 80GB PCIe", 85_899_345_920, 1.935e12, 3.12e14, None, 3.2e10, 300),
    Gpu("a100-80g", "A100 80GB SXM", 85_899_345_920, 2.039e12, 3.12e14, None, 3e11, 400),
    Gpu("a30", "A30", 25_769_803_776, 9.33e11, 1.65e14, None, 3.2e10, 165),
    Gpu("b200", "B200 SXM", 193_273_528_320, 7.7e12, 2.25e15, 4.5e15, 9e11, 1000),
    Gpu("b300", "B300 SXM", 288_400_343_040, 7.75e12, 2.25e15, 4.5e15, 9e11, 1100),
    Gpu("gb200", "GB200", 198_674_743_296, 8e12, 2.5e15, 5e15, 9e11, 1200),
    Gpu("gb300", "GB300", 298_013_687_808, 8e12, 2.5e15, 5e15, 9e11, 1400),
    Gpu("h100-pcie", "H100 PCIe", 85_899_345_920, 2e12, 7.565e14, 1.513e15, 6.4e10, 350),
    Gpu("h100", "H100 SXM", 85_899_345_920, 3.35e12, 9.89e14, 1.978e15, 4.5e11, 700),
    Gpu("h200", "H200 SXM", 151_397_597_184, 4.8e12, 9.89e14, 1.978e15, 4.5e11, 700),
    Gpu("l4", "L4", 25_769_803_776, 3e11, 1.21e14, 2.42e14, 3.2e10, 72),
    Gpu("l40s", "L40S", 48_305_799_168, 8.64e11, 3.62e14, 7.33e14, 3.2e10, 350),
    Gpu("rtx-pro-6000", "RTX PRO 6000 Server", 102_641_958_912, 1.792e12, 4.678e14, 9.356e14, 6.4e10, 600),
)
GPUS: dict[str, Gpu] = {gpu.name: gpu for gpu in _GPUS}


def gpu_named(name: str) -> Gpu:
    """The GPU of that name, in any case. Raises ValueError that says which there are."""
    found = GPUS.get(name.lower())
    if found is None:
        raise ValueError(f"GPU {name!r} is unknown; allowed: {', '.join(sorted(GPUS))}")
    return found
