"""What GPUs of one replica need to exchange, and how long that takes.

Where an exchange between such GPUs was measured (`cluster/hardware/exchanges.csv`), its time is read off the table, in
proportion between sizes. Without a table it is a ring's, from the link alone:

    all-reduce            2 (n - 1) messages of bytes / n     (reduce-scatter, then all-gather)
    all-gather, scatter     (n - 1) messages of bytes / n
    all-to-all              (n - 1) messages of bytes / n     to each neighbour its share
    message               latency + bytes / link

after Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009. A layer split by
tensor parallelism sums its output over the GPUs twice: after attention and after the feed-forward part (Shoeybi et al.,
"Megatron-LM", 2019).
"""

from dataclasses import dataclass
from math import log

from cluster.hardware import GPUS, Exchange, Gpu, exchange_table
from planning.fit.memory import Parallel


@dataclass(frozen=True, slots=True)
class Interconnect:
    """Exchanges between GPUs of one type in one node, in seconds."""

    gpu: Gpu

    @property
    def source(self) -> str:
        """The GPU whose measured table is used; empty: the link's own figures."""
        return _table_of(self.gpu)[0]

    def exchange_s(self, kind: Exchange, gpus: int, size: float) -> float:
        """`size`: bytes of the whole tensor, on `gpus` GPUs."""
        if gpus == 1 or size <= 0:
            return 0.0
        name, factor = _table_of(self.gpu)
        if name:
            measured = next((count for count in _MEASURED_NUMBERS if count >= gpus), _MEASURED_NUMBERS[-1])
            points = exchange_table(name, kind, measured)
            return _along(points, size * factor) * max(1.0, gpus / measured)
        messages = 2 * (gpus - 1) if kind == "all_reduce" else gpus - 1
        return messages * self.send_s(size / gpus)

    def send_s(self, size: float) -> float:
        """One message from a GPU to its neighbour."""
        return self.gpu.link_latency_s + size / self.gpu.link_bytes_per_s


_LIKE = {
    "a100-40g": "a100-80g",
    "b200": "h100",
    "b300": "h100",
    "gb200": "h100",
    "gb300": "h100",
    "h200": "h100",
}
"""GPUs without a table, by the one with the same kind of switch: its latency holds, sizes are scaled by the links."""
_PCIE_LIKE = "l40s"
_MEASURED_GPUS = ("a100-80g", "h100", "l40s", "rtx-pro-6000")
_MEASURED_NUMBERS = (2, 4, 8)
"""Of GPUs in a node; between them the next one counts, beyond 8 (several nodes) time grows with the number: a guess."""


def _table_of(gpu: Gpu) -> tuple[str, float]:
    """The table for a GPU, and what sizes are multiplied with. A spec's own entry states its link: no table."""
    shipped = GPUS.get(gpu.name)
    if shipped != gpu:
        return "", 1.0
    name = gpu.name if gpu.name in _MEASURED_GPUS else _LIKE.get(gpu.name, _PCIE_LIKE if gpu.link == "pcie" else "")
    if not name:
        return "", 1.0
    return name, GPUS[name].link_bytes_per_s / gpu.link_bytes_per_s


def _along(points: tuple[tuple[float, float], ...], size: float) -> float:
    """Linear between logarithms; in proportion beyond the largest size, constant below the smallest."""
    if size <= points[0][0]:
        return points[0][1]
    if size >= points[-1][0]:
        return points[-1][1] * size / points[-1][0]
    high = next(index for index, (at, _) in enumerate(points) if at >= size)
    (before, low_s), (after, high_s) = points[high - 1], points[high]
    share = log(size / before) / log(after / before)
    return float(low_s * (high_s / low_s) ** share)


def layers_s(
    link: Interconnect, parallel: Parallel, hidden: int, tokens: float, dense: int, mixtures: int, element: int = 2
) -> float:
    """What a step of so many tokens exchanges in `dense` layers and `mixtures` of experts, and after the embedding.

    With data parallelism each mixture gathers the tokens of all copies, and scatters the sums back.
    """
    size = tokens * hidden * element
    sums = 1 + 2 * dense + mixtures * (1 if parallel.data > 1 else 2)
    seconds = sums * link.exchange_s("all_reduce", parallel.tensor, size)
    if parallel.data > 1:
        ranks = parallel.tensor * parallel.data
        both = sum(link.exchange_s(kind, ranks, size * parallel.data) for kind in ("all_gather", "reduce_scatter"))
        seconds += mixtures * both
    if parallel.pipeline > 1:
        seconds += (parallel.pipeline - 1) * link.send_s(size / parallel.pipeline)
    return seconds
