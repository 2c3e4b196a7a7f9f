"""On what a cost model rests, part by part: the sources of a cost file.

A part's range is that of its basis:

    kernels     profile of this GPU 0.92 to 1.10: clocks and caches of a loaded GPU differ from a profiler's
                data sheet 0.85 to 1.20: four GPUs, each predicted from the other three (`kernels.py`); 0.70 to 1.25 of
                a GeForce, of which none was fitted
    exchange    the GPU's own table 0.70 to 1.60: servers connect their GPUs differently; a stated link 0.85 to 1.25
    host        `Host.low` to `Host.high`: another server's, or those of a calibration on this one

Shares are those of a busy step: 64 decodes with 1,000 tokens each, and a prompt of 512 tokens.
"""

from collections.abc import Mapping

from deployments.engine_model.cost_file import CostBasis, CostSource
from deployments.engine_model.cost_model import Chunk, CostModel
from planning.costs.host import Host
from planning.costs.interconnect import Interconnect

BUSY_DECODES, BUSY_KV, BUSY_PROMPT = 64, 1_000, 512
BUSY_TOKENS = BUSY_DECODES + BUSY_PROMPT

Range = tuple[float, float]
_KERNELS: Mapping[CostBasis, Range] = {
    CostBasis.PROFILE: (0.92, 1.10),
    CostBasis.OTHER_PROFILE: (0.75, 1.35),
    CostBasis.DATA_SHEET: (0.85, 1.20),
}
_CONSUMER = (0.70, 1.25)
"""Data sheet, of a GeForce."""
_EXCHANGE: Mapping[CostBasis, Range] = {
    CostBasis.PROFILE: (0.70, 1.60),
    CostBasis.OTHER_PROFILE: (0.60, 2.00),
    CostBasis.DATA_SHEET: (0.85, 1.25),
}


def sources_of(
    model: CostModel,
    kernels: CostBasis,
    host: Host,
    blocks: int,
    link: Interconnect | None,
    exchange_s: float,
    consumer: bool = False,
) -> tuple[CostSource, ...]:
    """`exchange_s`: between GPUs, in a step of `BUSY_TOKENS`. `consumer`: a GPU of a family that was not fitted."""
    busy_s = model.step_s([Chunk(BUSY_PROMPT, 0)], BUSY_DECODES, BUSY_DECODES * BUSY_KV, 1)
    host_share = min(1.0, (host.step_s + host.block_s * blocks) / busy_s)
    exchange_share = min(1.0 - host_share, exchange_s / busy_s)
    kernel_share = 1.0 - host_share - exchange_share
    low, high = _CONSUMER if consumer else _KERNELS[kernels]
    note = "no GPU of this family was fitted" if consumer else ""
    found = [CostSource(part="kernels", basis=kernels, share=kernel_share, low=low, high=high, note=note)]
    if link is not None:
        basis, note = _exchange_basis(link)
        low, high = _EXCHANGE[basis]
        found.append(
            CostSource(part="exchange between GPUs", basis=basis, share=exchange_share, low=low, high=high, note=note)
        )
    host_source = CostSource(
        part="host", basis=host.basis, share=host_share, low=host.low, high=host.high, note=host.source
    )
    return (*found, host_source)


def _exchange_basis(link: Interconnect) -> tuple[CostBasis, str]:
    if not link.source:
        return CostBasis.DATA_SHEET, "the link that the spec states"
    if link.source == link.gpu.name:
        return CostBasis.PROFILE, "measured exchanges of such GPUs"
    return CostBasis.OTHER_PROFILE, f"measured exchanges of {link.source}, scaled by the links"
