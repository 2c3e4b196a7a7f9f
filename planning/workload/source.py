"""Where requests come from: a recorded trace, or a traffic file that they are drawn from. Whoever takes one takes the other."""

from pathlib import Path

from planning.workload.scaling import first_requests
from planning.workload.trace import Trace
from planning.workload.traces import read_trace
from planning.workload.traffic import draw, load_traffic
from planning.workload.traffic.load import SUFFIXES


def read_requests(path: Path, limit: int | None = None, seed: int | None = None) -> Trace:
    """The requests of a traffic file (.yaml, .yml; drawn by its own seed unless another is given) or of a trace (anything else); the first `limit` of
    them. Raises TraceError."""
    if path.suffix not in SUFFIXES:
        return read_trace(path, limit)
    drawn = draw(load_traffic(path), seed)
    return drawn if limit is None else first_requests(drawn, limit)
