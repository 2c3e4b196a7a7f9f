"""The case of the benchmark: the spec beside this file, and a 70B model in fp8 on four L40S by data sheets."""

from pathlib import Path

from cluster.hardware import gpu_named
from cluster.spec import ClusterSpec, load_spec
from deployments.engine_model.cost_file import CostFile, cost_file
from deployments.engine_model.limits import Limits
from planning.costs.roofline import ModelShape, kv_tokens, roofline
from planning.simulator.workload import workload_of
from planning.tune.case import Case, case_of
from planning.workload.trace import Trace

SPEC = Path(__file__).with_name("bad.yaml")
START_UP_S = 120.0
_SHAPE = ModelShape(70.6e9, 80, 64, 8, 128, weight_bytes=1.0, kv_bytes=1.0)


def costs() -> CostFile:
    """A roofline."""
    gpu, gpus = gpu_named("L40S"), 4
    limits = Limits(48, 4_096, kv_tokens(_SHAPE, gpu, gpus))
    return cost_file("llama-3.1-70b", f"{gpus} x {gpu.title}", "roofline", limits, roofline(_SHAPE, gpu, gpus), note="from data sheets")


def case(trace: Trace, spec: ClusterSpec | None = None) -> Case:
    """The spec's model on that traffic."""
    spec = spec or load_spec(SPEC)
    model = spec.models[0]
    return case_of(spec, model, costs(), workload_of(trace, spec, model), START_UP_S)
