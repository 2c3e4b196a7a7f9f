"""A simulated model with a cost file of its own."""

from pathlib import Path
from typing import Any

from deployments.engine_model.cost_file import cost_file, write_cost_file
from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.limits import EngineModelLimits


def simulated_model(name: str, costs: Path, limits: EngineModelLimits, cost: CostModel, **more: Any) -> dict[str, Any]:
    """The model in a spec; its costs are written to that file. `more`: other keys, and more of its sections."""
    write_cost_file(costs, cost_file(name, "nothing", "roofline", limits, cost))
    settings = {"max_model_len": 4_096, "max_num_seqs": limits.sequences, "max_num_batched_tokens": limits.step_tokens}
    sections = {"simulated": {"costs": str(costs)}, "settings": settings}
    own = {section: values | more.pop(section, {}) for section, values in sections.items()}
    return {"name": name, "source": "nothing", "engine": "simulated", **own, **more}
