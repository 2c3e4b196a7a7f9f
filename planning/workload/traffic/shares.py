"""Draws names by their shares. Pure."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planning.workload.arrivals import FloatArray
from planning.workload.labels import Labels
from planning.workload.traffic.file import Share, Tenants


def zipf_weights(count: int, exponent: float) -> FloatArray:
    """Weights that fall with the rank: 1 / rank^exponent."""
    return 1.0 / np.arange(1, count + 1, dtype=np.float64) ** exponent


def drawn_numbers(weights: FloatArray, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`count` positions in `weights`, each as often as its weight says."""
    edges = np.cumsum(weights)
    drawn: NDArray[np.int64] = np.minimum(np.searchsorted(edges, rng.random(count) * edges[-1], side="right"), len(weights) - 1)
    return drawn


def drawn_labels(shares: Sequence[Share], count: int, rng: np.random.Generator) -> Labels | None:
    """`count` names by their shares; None where there are no names."""
    if not shares:
        return None
    weights = np.array([share.share for share in shares])
    return Labels(tuple(share.name for share in shares), drawn_numbers(weights, count, rng).astype(np.int32))


def drawn_tenants(tenants: Tenants | None, count: int, rng: np.random.Generator) -> Labels | None:
    """`count` tenants; None where the file has none."""
    if tenants is None or tenants.count is None:
        return drawn_labels(tenants.names, count, rng) if tenants else None
    names = tuple(f"tenant-{rank}" for rank in range(1, tenants.count + 1))
    return Labels(names, drawn_numbers(zipf_weights(tenants.count, tenants.zipf), count, rng).astype(np.int32))
