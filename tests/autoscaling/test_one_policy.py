"""What is tuned is what runs: from one spec, Serve's controller, its shadow, `raylane simulate` and `raylane tune` make
the same thing that decides.

The same classes out of the same code, with the same settings, bounds and knowledge, and so the same decisions. That
each of them really asks it is in `test_one_object.py` (the simulator, Serve and a shadow on one stream) and
`tune/test_runner.py`.
"""

import dataclasses
import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autoscaling.from_spec import setup_of
from autoscaling.policies.policy import ReplicaProfile, ScalingPolicy
from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.serve.cell import CellClient as ServeCell
from autoscaling.serve.facts import ModelFacts
from autoscaling.serve.handover import Handover
from autoscaling.serve.scaling import ModelScaling
from cluster.spec import ClusterSpec, load_spec
from deployments.engine_model.cost_file import write_cost_file
from planning.simulator.cell import CellSimulator
from planning.tune.case import case_of, own_and_defaults
from planning.tune.trial_runner import TrialRunner
from tests.autoscaling.setups import stream
from tests.commands import ran
from tests.planning.tune import cases

ROOMS = ("policies", "scaler", "shadow", "signals")
"""What `code_hash` covers."""
SHADOW = "  shadow: {policy: backlog, backlog: {utilisation: 0.7, down_after_s: 900}}\n"


@dataclass(frozen=True)
class Made:
    """What decides, as far as its decisions can depend on it."""

    classes: tuple[type, ...]
    settings: object
    bounds: object
    replica_profile: object


def made_of(scaler: Autoscaler) -> Made:
    policy, replica_profile = scaler.policy, _replica_profile(scaler.policy)
    assert replica_profile.cost is not None
    steps_s = [replica_profile.cost.step_s([], sequences, tokens, 0) for sequences in (1, 8) for tokens in (100, 1_000)]
    classes = (type(scaler), type(policy))
    return Made(
        classes, vars(policy)["settings"], scaler.bounds, (dataclasses.replace(replica_profile, cost=None), steps_s)
    )


def _replica_profile(policy: ScalingPolicy) -> ReplicaProfile:
    """What a backlog policy knows of a replica."""
    replica_profile: ReplicaProfile = vars(vars(policy)["capacity"])["_replica_profile"]
    return replica_profile


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a spec, the cost file that it names, and a trace."""
    write_cost_file(tmp_path / "costs.json", cases.costs())
    (tmp_path / "spec.yaml").write_text(cases.TEXT + "  costs: costs.json\n" + SHADOW)
    requests = ({"timestamp": 500 * number, "input_length": 100, "output_length": 20} for number in range(40))
    (tmp_path / "trace.jsonl").write_text("\n".join(json.dumps(one) for one in requests))
    return tmp_path


@pytest.fixture
def decides(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Callable[[], Autoscaler]]]:
    """How each comes by what decides; new at each call."""
    spec = load_spec(place / "spec.yaml")
    with monkeypatch.context() as patch:
        yield {
            "serve": lambda: _serving(spec, place)._pair.scaler,
            "shadow": lambda: _shadow(spec, place),
            "simulate": lambda: _simulated(place, patch),
            "tune": lambda: _tuned(spec, patch),
        }


def _serving(spec: ClusterSpec, folder: Path) -> ModelScaling:
    facts = ModelFacts(spec.model_dump_json(), "demo", "here")
    return ModelScaling(facts, ServeCell("demo"), Handover(), folder / "logs")


def _shadow(spec: ClusterSpec, folder: Path) -> Autoscaler:
    shadow = _serving(spec, folder)._pair.shadow
    assert shadow is not None
    return shadow.scaler.autoscaler


def _watched(patch: pytest.MonkeyPatch, module: str) -> list[Autoscaler]:
    """What scales the cells that this module makes from now on."""
    found: list[Autoscaler] = []

    class Watched(CellSimulator):
        def run(self):  # type: ignore[no-untyped-def]
            assert self.scaling is not None
            found.append(self.scaling._scaling.autoscaler)
            return super().run()

    patch.setattr(f"{module}.CellSimulator", Watched)
    return found


def _simulated(folder: Path, patch: pytest.MonkeyPatch) -> Autoscaler:
    found = _watched(patch, "planning.simulation")
    spec, trace, costs = (str(folder / name) for name in ("spec.yaml", "trace.jsonl", "costs.json"))
    ran("simulate", spec, "--trace", trace, "--costs", costs)
    return found[0]


def _tuned(spec: ClusterSpec, patch: pytest.MonkeyPatch) -> Autoscaler:
    found, model = _watched(patch, "planning.tune.trial_runner"), spec.models[0]
    own, _ = own_and_defaults(spec, model)
    TrialRunner(case_of(spec, model, cases.costs(), cases.work(60.0)), lambda: 0.0).exact(own, 1.0)
    return found[0]


def test_an_estimate_counts_where_the_spec_names_no_costs(place: Path) -> None:
    costs = cases.costs()
    text = costs.model_copy(update={"engine": costs.engine.model_copy(update={"kv_tokens": 50_000})}).model_dump_json()

    def kv_tokens(spec: ClusterSpec) -> int:
        return ModelFacts(spec.model_dump_json(), "demo", "here", text).setup.replica_profile.limits.kv_tokens

    assert kv_tokens(cases.spec()) == 50_000
    assert kv_tokens(load_spec(place / "spec.yaml")) == costs.engine.kv_tokens != 50_000


def test_the_same_classes_out_of_the_same_code_with_the_same_settings(
    decides: dict[str, Callable[[], Autoscaler]],
) -> None:
    made = {who: made_of(make()) for who, make in decides.items()}
    assert set(made) == {"serve", "shadow", "simulate", "tune"}
    for who, one in made.items():
        assert one == made["serve"], who
    assert made["serve"].classes[0] is Autoscaler


@pytest.mark.whole
def test_the_same_decisions(decides: dict[str, Callable[[], Autoscaler]]) -> None:
    decided = {}
    for who, make in decides.items():
        scaler = _as_new(make())
        decided[who] = [scaler.decide(signals) for signals in stream(300)]
        assert decided[who] == decided["serve"], who
    assert len({one.requested for one in decided["serve"]}) > 1


def _as_new(scaler: Autoscaler) -> Autoscaler:
    """The simulator's have decided already: the same kind, with nothing learned."""
    policy = scaler.policy
    return type(scaler)(type(policy)(vars(policy)["settings"], _replica_profile(policy)), scaler.bounds)  # type: ignore[call-arg]


def test_the_log_names_the_hash_of_just_that_code(place: Path, decides: dict[str, Callable[[], Autoscaler]]) -> None:
    root = Path(inspect.getsourcefile(setup_of) or "").parent
    for make in decides.values():
        for one in made_of(make()).classes:
            assert Path(inspect.getsourcefile(one) or "").relative_to(root).parts[0] in ROOMS
