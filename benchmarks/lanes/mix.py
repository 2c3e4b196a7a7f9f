"""The traffic of the benchmark: chat and code requests of Azure's 2023 traces with long prompts of Mooncake's, fitted to the model's context. Pure.

Each provider's lengths shrink by one factor, which makes its longest request fit: with a single factor for all, Mooncake's 126,000 tokens would leave
chat prompts of 40 tokens, whose cost is that of their HTTP request. Arrivals keep the pattern of Azure's chat trace, stretched in time to the wanted
rate; each is given to one of the three sources by a seeded draw.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autoscaling.workload.arrivals import FloatArray
from autoscaling.workload.fitting import scale_lengths, scale_to_fit
from autoscaling.workload.lengths import IntArray
from autoscaling.workload.traces import read_trace

CHAT, CODE, LONG = "azure2023_conv.csv.gz", "azure2023_code.csv.gz", "mooncake_synthetic.jsonl.gz"
SHARES = (0.70, 0.25, 0.05)
_LONG_QUANTILE = 0.5
"""Of Mooncake's prompts the longer half is taken."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Requests in the order of their arrival: seconds from the start, and tokens."""

    arrivals_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray

    def __len__(self) -> int:
        return len(self.prompt_tokens)


class Traffic:
    """Draws mixes from the traces in `folder`. Raises `autoscaling.workload.trace.TraceError`."""

    def __init__(self, folder: Path, max_model_len: int) -> None:
        chat, code, mooncake = (read_trace(folder / name) for name in (CHAT, CODE, LONG))
        long = mooncake.prompt_tokens >= np.quantile(mooncake.prompt_tokens, _LONG_QUANTILE)
        self._gaps = np.diff(chat.arrived_s)
        self._sources = (
            (chat.prompt_tokens, chat.output_tokens),
            (code.prompt_tokens, code.output_tokens),
            (mooncake.prompt_tokens[long], mooncake.output_tokens[long]),
        )
        azure = scale_to_fit(
            np.concatenate([chat.prompt_tokens, code.prompt_tokens]), np.concatenate([chat.output_tokens, code.output_tokens]), max_model_len
        )
        self.scales = (azure, azure, scale_to_fit(mooncake.prompt_tokens, mooncake.output_tokens, max_model_len))

    def draw(self, rate: float, duration_s: float, seed: int) -> Mix:
        """The requests that arrive in `duration_s` seconds at `rate` a second."""
        rng = np.random.default_rng(seed)
        count = max(1, round(rate * duration_s))
        start = int(rng.integers(0, max(1, len(self._gaps) - count)))
        gaps = np.resize(self._gaps[start:], count)
        return self._fill(np.cumsum(gaps) * (duration_s / gaps.sum()), rng)

    def block(self, count: int, seed: int) -> Mix:
        """So many requests, all at once: for a closed loop."""
        return self._fill(np.zeros(count), np.random.default_rng(seed))

    def _fill(self, arrivals: FloatArray, rng: np.random.Generator) -> Mix:
        count = len(arrivals)
        source = rng.choice(len(SHARES), size=count, p=SHARES)
        prompts, outputs = np.ones(count, dtype=np.int64), np.ones(count, dtype=np.int64)
        for number, (prompt_tokens, output_tokens) in enumerate(self._sources):
            mine = source == number
            picks = rng.integers(len(prompt_tokens), size=int(mine.sum()))
            prompts[mine] = scale_lengths(prompt_tokens[picks], self.scales[number])
            outputs[mine] = scale_lengths(output_tokens[picks], self.scales[number])
        return Mix(arrivals, prompts, outputs)
