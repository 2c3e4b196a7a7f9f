"""One run of `benchmarks.lanes.order`, in a process of its own: `python order_side.py INPUT.npz OUTPUT.npz`.

It is started by its path, so that it runs with whatever version of raylane PYTHONPATH names: an earlier version and
this one meet the same arrivals and the same engine.
"""

import json
import sys
from pathlib import Path

import numpy as np

from cluster.spec import parse_spec
from deployments.engine_model.cost_file import read_cost_file
from deployments.scheduling.policy import binding_of, policy_of
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.workload import Workload


def main(source: Path, target: Path) -> None:
    """Reads the arrivals, the spec and the costs; writes a column for each thing that is compared."""
    given = np.load(source, allow_pickle=False)
    run = json.loads(str(given["run"]))
    spec, costs, count = parse_spec(run["spec"]), read_cost_file(Path(run["costs"])), len(given["arrived_s"])
    settings = CellSettings(
        replicas=1,
        limits=costs.limits(),
        policy=policy_of(spec),
        binding=binding_of(spec),
        max_model_len=run["context"],
        queue_wait_s=1_800.0,
        clients=run["clients"],
    )
    names = [run["tenants"][number] for number in given["tenant"]]
    workload = Workload(
        given["arrived_s"],
        given["prompt_tokens"],
        given["output_tokens"],
        given["output_tokens"],
        given["slo_s"],
        names,
        ("interactive",) * count,
        ((),) * count,
    )
    out = CellSimulator(settings, costs.cost_model(), workload).run()
    columns = {
        name: getattr(out, name)
        for name in ("arrived_s", "placed_s", "first_s", "finished_s", "lane", "eta_p50_s", "eta_p95_s", "promoted")
    }
    np.savez(target, **columns, rejected=out.rejected, ended_s=out.ended_s)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
