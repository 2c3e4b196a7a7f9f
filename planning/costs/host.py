"""What the host adds to a step. Neither a profile of layers nor a data sheet shows it.

    a step of decodes   step_s                      copying the batch in and the tokens out, gaps between kernels
    one that prefills   step_s + block_s * blocks   its CUDA graph is cut at each block's attention, whose kernels the
                                                    processor launches one by one

With asynchronous scheduling, scheduling itself is hidden behind the step before. A calibration finds all of it (it is
part of the steps that it measures).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """Seconds that a step takes beside its kernels, and those of each block of a step that prefills. `low` and `high`:
    multiples between which another server's likely are."""

    step_s: float
    block_s: float
    low: float
    high: float
    source: str


TYPICAL_HOST = Host(
    0.00075,
    0.000125,
    0.5,
    2.0,
    "one server: vLLM 0.19 with Llama-3.1-8B on an RTX PRO 6000, whose steps of decodes take 0.5 to 2 ms more than the "
    "profile of its layers, those that prefill another 4 ms",
)
NO_HOST = Host(0.0, 0.0, 1.0, 1.0, "none: the kernels alone")
COLD_STEP_S = 0.065
"""An engine's first step, where nothing warmed it up, takes longer by this: the first answer of that server."""
