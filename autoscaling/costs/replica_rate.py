"""temporary"""

from deployments.engine_model.cost_model import Chunk, CostModel
from deployments.engine_model.limits import Limits


def rate_at(limits: Limits, cost: CostModel, prompt: float, answer: float, itl_s: float | None) -> float:
    most = min(limits.sequences, limits.kv_tokens / (prompt + answer))
    best = 0.0
    b = 1
    while b <= most:
        kv = b * (prompt + answer / 2)
        share = b * prompt / answer
        t = cost.step_s([Chunk(max(1, round(share)), 0)] if share >= 1 else [], b, kv, 0)
        if itl_s is None or t <= itl_s:
            best = max(best, b / (answer * t))
        b += max(1, b // 16)
    return best
