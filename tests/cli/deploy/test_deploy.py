"""`raylane deploy`: what it says before it changes anything, what it refuses, and that the rendered examples are those
of their spec."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.deploy.changes import DeployPlan, plan_of
from cli.deploy.record import Applied
from cli.deploy.rendering import estimates_of, rendering_of
from cli.deploy.steps import finished
from cluster.spec import ClusterSpec, load_spec, parse_spec
from deployments.engine_model.cost_file import CostFile
from tests.cluster.launch.specs import AWS, KUBERNETES, LOCAL, MODEL, PUBLIC, changed, spec_of
from tests.commands import ran
from tests.planning.tune import cases

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "infra" / "specs" / "three-providers.yaml"


def plan(new: ClusterSpec, old: ClusterSpec | None = None) -> DeployPlan:
    applied = Applied()
    if old is not None:
        applied = finished(plan_of(rendering_of(old, old, old.regions[0]), "keys", applied), applied)
    return plan_of(rendering_of(new, new, new.regions[0]), "keys", applied)


def test_the_rendered_examples_are_those_of_their_spec() -> None:
    spec = load_spec(EXAMPLE)
    for region in spec.regions:
        folder = ROOT / "infra" / "rendered" / region.name
        found = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
        assert found == rendering_of(spec, spec, region).files, (
            "stale: raylane deploy infra/specs/three-providers.yaml --render infra/rendered"
        )
    assert {path.name for path in (ROOT / "infra" / "rendered").iterdir()} == {one.name for one in spec.regions}


def test_the_same_spec_is_nothing_to_do() -> None:
    again = plan(spec_of(LOCAL), spec_of(LOCAL))
    assert again.is_nothing
    assert (again.touched, again.diffs) == ([], [])


def test_another_folder_of_the_spec_restarts_no_node() -> None:
    own = {"ssh_key": "keys/id", "secrets": {"kind": "file", "folder": "secrets"}}
    unplaced = spec_of(changed(LOCAL, **own))
    text = yaml.safe_dump(unplaced.model_dump(mode="json"))
    here, there = (parse_spec(text, folder=Path(folder)) for folder in ("/home/ann/team", "/builds/17/team"))
    first, second = (rendering_of(spec, unplaced, spec.regions[0]) for spec in (here, there))
    assert first.files != second.files, "`ray up` finds them wherever it runs"
    assert plan_of(second, "keys", finished(plan_of(first, "keys", Applied()), Applied())).is_nothing


def test_an_estimate_of_costs_is_the_one_that_was_deployed_whoever_deploys_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not all operators have the model's files; what is rendered must not depend on that."""
    asked = []

    def deployed(spec: ClusterSpec, has_files: bool, applied: Applied) -> tuple[DeployPlan, Applied]:
        def estimate(*given: Any) -> CostFile | None:
            asked.append(given)
            return cases.costs() if has_files else None

        monkeypatch.setattr("cli.costs.estimate", estimate)
        region = spec.regions[0]
        rendering = rendering_of(spec, spec, region, estimates_of(spec, spec, region, applied.estimates))
        plan = plan_of(rendering, "keys", applied)
        return plan, Applied.model_validate_json(finished(plan, applied).model_dump_json())

    scales = {**MODEL, "replicas": {"count": 2, "max": 4}}
    first = spec_of(LOCAL, models=[scales])
    with_files, applied = deployed(first, True, Applied())
    assert '"estimate"' in with_files.rendering.files["serve-config.json"]
    again, _ = deployed(first, False, applied)
    assert again.is_nothing
    assert len(asked) == 1
    without, other = deployed(first, False, Applied())
    assert '"estimate"' not in without.rendering.files["serve-config.json"]
    assert deployed(first, True, other)[0].is_nothing, "that there was none is recorded as well"
    asked.clear()
    more = spec_of(LOCAL, models=[{**scales, "replicas": {"count": 2, "max": 6}}])
    deployed(more, True, applied)
    assert not asked, "the engine is the same"
    engine = spec_of(LOCAL, models=[{**scales, "settings": {"max_model_len": 512}}])
    deployed(engine, True, applied)
    assert len(asked) == 1
    fixed, _ = deployed(spec_of(LOCAL), True, Applied())
    assert not fixed.rendering.estimates


def test_a_new_cell_is_told_of_in_full() -> None:
    first = plan(spec_of(LOCAL, **PUBLIC))
    assert first.touched[0] == "region here: a new cell (local)"
    assert {"region here: model 'demo' is added", "region here: tenant 'search' is added"} <= set(first.touched)
    assert any(line.startswith("+head_start_ray_commands") for line in first.diffs)
    assert not any("ab" * 32 in line for line in first.diffs)


@pytest.mark.parametrize(
    ("sections", "words", "cluster"),
    [
        ({"models": [{**MODEL, "replicas": {"count": 3}}]}, "region here: model 'demo' changes: replicas", False),
        ({"models": [MODEL, {**MODEL, "name": "more"}]}, "region here: model 'more' is added", False),
        ({"models": [{**MODEL, "name": "more"}]}, "region here: model 'demo' is removed", False),
        ({"classes": [{"name": "batch", "ttft_ms": 9}]}, "region here: class 'batch' is added", False),
        ({"lanes": [{"name": "all"}]}, "region here: lane 'all' is added", False),
        ({"gateway": {"drain_s": 5}}, "region here: gateway changes", False),
        (
            {"regions": [changed(LOCAL, environment={"A": "b"})]},
            "region here: the Ray cluster changes; its nodes restart",
            True,
        ),
    ],
)
def test_a_change_says_what_it_touches(sections: dict[str, Any], words: str, cluster: bool) -> None:
    regions = sections.pop("regions", [LOCAL])
    change = plan(spec_of(*regions, **sections), spec_of(LOCAL))
    assert words in change.touched
    assert (change.cluster, change.applications) == (cluster, not cluster)
    assert change.diffs != []


def test_another_address_of_a_worker_restarts_nodes_alone() -> None:
    workers = [*LOCAL["deploy"]["workers"][:2], {"address": "10.77.0.9", "pool": "gpu"}]
    change = plan(spec_of(changed(LOCAL, workers=workers)), spec_of(LOCAL))
    assert (change.cluster, change.applications) == (True, False)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"regions": [{"name": "r", "pools": [{"name": "p"}]}]}, "no region of the spec says where it runs"),
        (
            {"regions": [KUBERNETES]},
            "gateway.host = '127.0.0.1': nobody reaches a pod's loopback; allowed on Kubernetes: 0.0.0.0 or ::, with "
            "allow_public and tenants",
        ),
        ({"regions": [LOCAL], "gateway": {"replicas": 4}}, "gateway.replicas = 4: allowed: at most 3, one for each"),
        (
            {"regions": [LOCAL], "gateway": {"trace_file": "trace.jsonl"}},
            "gateway.trace_file = 'trace.jsonl': allowed in a deployed cell: an absolute path",
        ),
        (
            {"regions": [LOCAL], "models": [{**MODEL, "source": "./weights"}]},
            "models.demo.source = './weights': allowed in a deployed cell: an absolute path",
        ),
        (
            {"regions": [LOCAL], "gateway": {"host": "10.0.0.1", "allow_public": True}, "tenants": PUBLIC["tenants"]},
            "gateway.host = '10.0.0.1': no address of each node",
        ),
        (
            {"regions": [LOCAL], "gateway": {"host": "0.0.0.0", "allow_public": True}},
            "gateway.allow_public = true: allowed only with tenants",
        ),
        (
            {"regions": [LOCAL, {**LOCAL, "name": "there"}]},
            "regions.here.deploy: 10.77.0.2 is a host of there, too; allowed: one cell on a host",
        ),
        (
            {"regions": [{**KUBERNETES, "pools": [{**KUBERNETES["pools"][0], "cpus_per_node": None}]}], **PUBLIC},
            "regions.eu.pools.gpu.cpus_per_node: missing",
        ),
    ],
)
def test_what_cannot_be_deployed_is_refused_by_name(tmp_path: Path, content: dict[str, Any], words: str) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump({"name": "team", "models": [MODEL], **content}))
    assert words in " ".join(ran("deploy", str(file), "--diff", code=2).output.split())


def test_a_head_that_nothing_replaces_has_a_procedure_with_its_own_addresses() -> None:
    def lost_head(region: dict[str, Any], **sections: Any) -> str | None:
        spec = spec_of(region, **sections)
        return rendering_of(spec, spec, spec.regions[0]).files.get("lost-head.md")

    local = lost_head(LOCAL)
    assert local is not None
    assert [
        words for words in ("10.77.0.2", "~/.ssh/id_ed25519", "--region here", "12 hours") if words not in local
    ] == []
    assert lost_head(AWS) is not None
    assert lost_head(changed(AWS, head_group="heads", key_name="mine", ssh_key="~/.ssh/mine")) is None
    assert lost_head(KUBERNETES, **PUBLIC) is None


def test_a_rendering_reads_and_writes_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYLANE_HOME", str(tmp_path / "home"))
    ran("deploy", str(EXAMPLE), "--region", "office", "--render", str(tmp_path / "out"))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"office"}
    assert not (tmp_path / "home").exists()
    assert "2b7e1516" not in "".join(path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file())


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs for which no cell is there yet. Returns their folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("ssh", "kubectl"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("RAYLANE_HOME", str(tmp_path / "home"))
    return folder


def test_a_difference_is_shown_and_nothing_is_done(tmp_path: Path, nowhere: Path) -> None:
    options = ["deploy", str(EXAMPLE), "--diff", "--region", "office"]
    result = ran(*options)
    assert "region office: a new cell (local)" in result.output
    assert "files: lost-head.md, node/head.service," in result.output
    assert "+head_start_ray_commands" not in result.output
    assert "+head_start_ray_commands" in ran(*options, "--verbose").output
    assert [path.name for path in (tmp_path / "home").rglob("*") if path.is_file()] == ["lock"]


def test_without_yes_nothing_is_changed_where_nobody_can_be_asked(tmp_path: Path, nowhere: Path) -> None:
    result = ran("deploy", str(EXAMPLE), "--region", "office", code=2)
    assert "standard input is no terminal to ask at" in " ".join(result.output.split())
    assert [path.name for path in (tmp_path / "home").rglob("*") if path.is_file()] == ["lock"]


def test_going_back_reads_the_spec_of_before_as_it_was(tmp_path: Path, nowhere: Path) -> None:
    """YAML reads neither 1e-05 as a number nor JSON's pairs of surrogates as one character."""
    model = {**MODEL, "settings": {"max_model_len": 512, "chat_template": "{{ m }} \U0001f600", "extra": {"a": 1e-05}}}
    before = spec_of(LOCAL, models=[model])
    rendering = rendering_of(before, before, before.regions[0])
    applied = finished(plan_of(rendering, "keys", Applied()), Applied()).model_copy(update={"applications": None})
    (tmp_path / "applied.json").write_text(applied.model_dump_json())
    (nowhere / "ssh").write_text(f"#!/bin/sh\ncase $* in *applied.json*) cat {tmp_path}/applied.json ;; esac\n")
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump({"name": "team", "regions": [LOCAL], "models": [MODEL]}))
    said = ran("deploy", str(file), "--rollback", "--diff").output
    assert "changes" not in said
    assert not [line for line in said.splitlines() if line.startswith(("+", "-"))]


def test_no_answer_is_no_new_cell(nowhere: Path) -> None:
    (nowhere / "ssh").write_text("#!/bin/sh\necho no route to host >&2\nexit 255\n")
    result = ran("deploy", str(EXAMPLE), "--diff", "--region", "office", code=1)
    assert "does not answer: no route to host" in " ".join(result.output.split())
    assert "a new cell" not in result.output
