"""What the host adds to a step. Neither a profile of layers nor a data sheet shows it.

    a step of decodes   step_s                      copying the batch in and the tokens out, gaps between kernels
    one that prefills   step_s + block_s * blocks   its CUDA graph is cut at each block's attention, whose kernels the
                                                    processor launches one by one

With asynchronous scheduling, scheduling itself is hidden behind the step before. A calibration finds all of it (it is
part of the steps that it measures). What it found for one model holds for others on that host (`calibrated_host`).
"""

from dataclasses import dataclass

from deployments.engine_model.cost_file import CostBasis, CostFile
from deployments.engine_model.cost_model import Curve

_NO_TIME = Curve((0.0,), (0.0,))


@dataclass(frozen=True, slots=True)
class Host:
    """Seconds that a step takes beside its kernels, and those of each block of a step that prefills. `low` and `high`:
    multiples between which the true ones likely are. `front` and `back_s`: around the steps of
    a request, where they are known."""

    step_s: float
    block_s: float
    low: float
    high: float
    source: str
    basis: CostBasis = CostBasis.OTHER_PROFILE
    front: Curve = _NO_TIME
    back_s: float = 0.0


TYPICAL_HOST = Host(
    0.00075,
    0.0001,
    0.5,
    2.0,
    "one server: vLLM 0.19 with Llama-3.1-8B on an RTX PRO 6000, whose steps of decodes take 0.5 to 2 ms more than the "
    "profile of its layers, those that prefill another 3 to 4 ms",
)
NO_HOST = Host(0.0, 0.0, 1.0, 1.0, "none: the kernels alone")


def calibrated_host(file: CostFile) -> Host:
    """The host's part that a calibration found beside its model's kernels, whose times a data sheet gives: a range.
    What other servers take narrows it where both ranges meet. Raises ValueError where there is none."""
    found = file.calibration.host if file.calibration else None
    if found is None or found.host_step_s is None or found.host_block_s is None or found.blocks is None:
        raise ValueError(
            f"costs of {file.model!r}, basis {file.basis}: the host's part is not known; allowed: a file of `raylane "
            "calibrate` for a GPU and a config.json that are known"
        )
    typical = TYPICAL_HOST
    step, block = (
        _narrowed(measured, (typical.low * usual_s, typical.high * usual_s))
        for measured, usual_s in ((found.host_step_s, typical.step_s), (found.host_block_s, typical.block_s))
    )
    step_s, block_s = sum(step) / 2, sum(block) / 2
    whole_s = step_s + found.blocks * block_s
    low, high = ((step[end] + found.blocks * block[end]) / whole_s if whole_s else 1.0 for end in (0, 1))
    source = f"calibrated here with {file.model}"
    return Host(
        step_s, block_s, low, high, source, CostBasis.CALIBRATED, front=file.cost_model().front, back_s=file.back_s
    )


def _narrowed(measured: tuple[float, float], usual: tuple[float, float]) -> tuple[float, float]:
    low, high = max(measured[0], usual[0]), min(measured[1], usual[1])
    return (low, high) if low <= high else measured
