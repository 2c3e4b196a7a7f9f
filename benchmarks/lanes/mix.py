"""What the contest is made of: the policies that are compared, and their traffic. Pure.

Policies are sections of the spec, applied to one running cluster in turns, so that every side has the same engines. All
have the same caps on what may wait: `LANES`' in sum. `unbound` binds everything at once that fits the KV cache: the
queue is then the engine's own. `loose` binds a quarter of the engine's sequences ahead, and two steps of prefill.

Traffic: chat and code requests of Azure's 2023 traces with long prompts from elsewhere, fitted to the model's context.
Each provider's lengths shrink by one factor, which makes its longest request fit: with a single factor for all,
Mooncake's 126,000 tokens would leave chat prompts of 40 tokens, whose cost is that of their HTTP request. Arrivals keep
the pattern of Azure's chat trace, stretched in time to the wanted rate; each is given to one of the three sources by a
seeded draw. Mixes differ in where the long prompts come from: settings are chosen on one mix, and judged on the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cluster.spec import ClusterSpec
from planning.workload.arrivals import FloatArray
from planning.workload.lengths import IntArray
from planning.workload.scaling import scale_lengths, scale_to_fit
from planning.workload.servegen import drawn_trace, read_tables
from planning.workload.trace import Trace
from planning.workload.traces import read_trace

LANES: tuple[dict[str, Any], ...] = tuple(
    {key: value for key, value in asdict(lane).items() if value is not None} | {"cap_s": 600}
    for lane in ClusterSpec.model_fields["lanes"].default
)
"""The spec's, with room for an overload of minutes."""
_ONE: tuple[dict[str, Any], ...] = ({"name": "all", "max_wait_s": 3_600, "cap_s": 1_800},)

SIDES: dict[str, dict[str, Any]] = {
    "lanes": {"lanes": LANES, "scheduling": {}},
    "fifo": {"lanes": _ONE, "scheduling": {"order": "arrival"}},
    "shortest": {"lanes": _ONE, "scheduling": {}},
    "loose": {"lanes": _ONE, "scheduling": {"order": "arrival", "bind_ahead": 0.25, "prefill_steps": 2}},
    "unbound": {"lanes": _ONE, "scheduling": {"order": "arrival", "bind_ahead": 1_000, "prefill_steps": 100_000}},
}


def lane_index(prompt_tokens: int, output_tokens: int) -> int:
    """The lane by length of a request, whatever the side: what results are sorted by."""
    for index, lane in enumerate(LANES):
        if prompt_tokens + output_tokens <= lane.get("up_to_tokens", prompt_tokens + output_tokens):
            return index
    return len(LANES) - 1


CHAT, CODE = "azure2023_conv.csv.gz", "azure2023_code.csv.gz"
SHARES = (0.70, 0.25, 0.05)
_NOON_S, _HOUR_S = 12 * 3_600.0, 3_600.0
_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class _Long:
    """Where a mix has its long prompts from: the trace, and the quantile of its prompts from which on they are
    taken."""

    read: Callable[[Path], Trace]
    quantile: float


def _recorded(name: str) -> Callable[[Path], Trace]:
    return lambda folder: read_trace(folder / name)


def _served(model: str, rate_scale: float = 1.0) -> Callable[[Path], Trace]:
    """An hour of one of ServeGen's models. The long prompts of deepseek-r1 have long answers, unlike Mooncake's."""
    return lambda folder: drawn_trace(
        read_tables(folder, model), _NOON_S, _NOON_S + _HOUR_S, rate_scale, np.random.default_rng(0), _MAX
    )


MIXES = {
    "azure-mooncake": _Long(_recorded("mooncake_synthetic.jsonl.gz"), 0.5),
    "azure-servegen": _Long(_served("deepseek-r1"), 0.95),
    "azure-small": _Long(_served("m-small", 0.1), 0.95),
    "azure-conversation": _Long(_recorded("mooncake_conversation.jsonl.gz"), 0.5),
}


@dataclass(frozen=True, slots=True)
class LaneTraffic:
    """Draws requests: arrivals by the gaps of a trace, lengths of three sources by `SHARES`, each times its scale."""

    gaps_s: FloatArray
    sources: Sequence[tuple[IntArray, IntArray]]
    scales: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def draw(self, rate: float, duration_s: float, seed: int) -> Trace:
        """The requests that arrive in `duration_s` seconds at `rate` a second."""
        rng = np.random.default_rng(seed)
        count = max(1, round(rate * duration_s))
        start = int(rng.integers(0, max(1, len(self.gaps_s) - count)))
        gaps = np.resize(self.gaps_s[start:], count)
        return self._fill(np.cumsum(gaps) * (duration_s / gaps.sum()), rng)

    def block(self, count: int, seed: int) -> Trace:
        """So many requests, all at once: for a closed loop."""
        return self._fill(np.zeros(count), np.random.default_rng(seed))

    def _fill(self, arrivals: FloatArray, rng: np.random.Generator) -> Trace:
        count = len(arrivals)
        source = rng.choice(len(SHARES), size=count, p=SHARES)
        prompts, outputs = np.ones(count, dtype=np.int64), np.ones(count, dtype=np.int64)
        for number, (prompt_tokens, output_tokens) in enumerate(self.sources):
            mine = source == number
            picks = rng.integers(len(prompt_tokens), size=int(mine.sum()))
            prompts[mine] = scale_lengths(prompt_tokens[picks], self.scales[number])
            outputs[mine] = scale_lengths(output_tokens[picks], self.scales[number])
        return Trace(arrivals, prompts, outputs)


def lane_traffic(folder: Path, max_model_len: int, mix: str = "azure-mooncake") -> LaneTraffic:
    """A mix of the traces in `folder`. Raises `planning.workload.trace.TraceError`."""
    chat, code = (read_trace(folder / name) for name in (CHAT, CODE))
    source = MIXES[mix]
    whole = source.read(folder)
    long = whole.prompt_tokens >= np.quantile(whole.prompt_tokens, source.quantile)
    azure = scale_to_fit(
        np.concatenate([chat.prompt_tokens, code.prompt_tokens]),
        np.concatenate([chat.output_tokens, code.output_tokens]),
        max_model_len,
    )
    return LaneTraffic(
        np.diff(chat.arrived_s),
        (
            (chat.prompt_tokens, chat.output_tokens),
            (code.prompt_tokens, code.output_tokens),
            (whole.prompt_tokens[long], whole.output_tokens[long]),
        ),
        (azure, azure, scale_to_fit(whole.prompt_tokens, whole.output_tokens, max_model_len)),
    )
