"""The policies that are compared, as sections of the spec: they are applied to one running cluster in turns, so that every side has the same engines.

All have the same caps on what may wait: `LANES`' in sum. `unbound` binds everything at once that fits the KV cache: the queue is then the engine's
own. `loose` binds a quarter of the engine's sequences ahead, and two steps of prefill.
"""

from typing import Any

LANES: tuple[dict[str, Any], ...] = (
    {"name": "short", "up_to_tokens": 384, "weight": 16, "max_wait_s": 30, "cap_s": 600},
    {"name": "medium", "up_to_tokens": 1_536, "weight": 4, "max_wait_s": 60, "cap_s": 600},
    {"name": "long", "weight": 1, "max_wait_s": 120, "cap_s": 600},
)
_ONE: tuple[dict[str, Any], ...] = ({"name": "all", "max_wait_s": 3_600, "cap_s": 1_800},)
_EVEN = tuple({**lane, "weight": 1, "max_wait_s": 3_600} for lane in LANES)
_SCHEDULING: dict[str, Any] = {"order": "deadline", "promoted_share": 0.15}

SIDES: dict[str, dict[str, Any]] = {
    "lanes": {"lanes": LANES, "scheduling": _SCHEDULING},
    "fifo": {"lanes": _ONE, "scheduling": {**_SCHEDULING, "order": "arrival"}},
    "round robin": {"lanes": _EVEN, "scheduling": {**_SCHEDULING, "order": "arrival"}},
    "deadline": {"lanes": _ONE, "scheduling": _SCHEDULING},
    "loose": {"lanes": _ONE, "scheduling": {**_SCHEDULING, "order": "arrival", "bind_ahead": 0.25, "prefill_steps": 2}},
    "unbound": {"lanes": _ONE, "scheduling": {**_SCHEDULING, "order": "arrival", "bind_ahead": 1_000, "prefill_steps": 100_000}},
}


def lane_index(prompt_tokens: int, output_tokens: int) -> int:
    """The lane by length of a request, whatever the side: what results are sorted by."""
    for index, lane in enumerate(LANES):
        if prompt_tokens + output_tokens <= lane.get("up_to_tokens", prompt_tokens + output_tokens):
            return index
    return len(LANES) - 1
