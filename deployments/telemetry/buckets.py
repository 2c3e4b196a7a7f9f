"""The bounds that all histograms share: prompt lengths for labels, seconds for latencies."""

from bisect import bisect_left

PROMPT_BOUNDS = (64, 256, 1_024, 4_096, 16_384, 65_536)
TTFT_BOUNDS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300)
ITL_BOUNDS_S = (
    0.001,
    0.0025,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    1,
    2,
    5,
)
E2E_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)

_PROMPT_LABELS = (*(f"le_{bound}" for bound in PROMPT_BOUNDS), f"gt_{PROMPT_BOUNDS[-1]}")


def prompt_bucket(prompt_tokens: int) -> str:
    """The `prompt_bucket` label of a prompt: `le_256` holds 65 to 256 tokens."""
    return _PROMPT_LABELS[bisect_left(PROMPT_BOUNDS, prompt_tokens)]
