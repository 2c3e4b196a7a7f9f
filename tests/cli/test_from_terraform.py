"""`raylane spec from-terraform`: outputs become fields of the spec, and a contradiction names the field.

`tests/infra/outputs.json` is what Terraform printed for the example region on mocks (`tests/infra/test_terraform.py`
holds it to that).
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.launch import RAY_YAML, launcher_files
from cluster.spec import AwsDeploy, ClusterSpec, load_spec, parse_spec
from tests.commands import ran

OUTPUTS = Path(__file__).parents[1] / "infra" / "outputs.json"
MODELS = "models: [{name: demo, source: demo, settings: {max_model_len: 1024}, replicas: {count: 1}}]\n"
MODELS += f"tenants: [{{name: team, keys: ['sha256:{'0' * 64}']}}]\n"
SPEC = """\
# Our cell in Frankfurt.
version: 1
name: raylane
regions:
  - name: eu-central-1
    pools:
      - {name: l40s, accelerator: L40S, nodes: 2, gpus_per_node: 4}   # reserved
      - {name: l40s-spot, accelerator: L40S, gpus_per_node: 4, spot: true}
      - {name: gateways, nodes: 2}
gateway:
  drain_s: 30
  timeouts:
    total_s: 900      # long answers
"""


@pytest.fixture
def outputs() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(OUTPUTS.read_text())
    return found


def run(tmp_path: Path, outputs: dict[str, Any], spec: str, *options: str) -> tuple[int, str, Path]:
    """The exit status, all that was printed in one line, and the spec's file."""
    (tmp_path / "outputs.json").write_text(json.dumps(outputs))
    file = tmp_path / "spec.yaml"
    file.write_text(spec)
    arguments = ["spec", "from-terraform", str(tmp_path / "outputs.json"), *options, "--spec", str(file)]
    result = ran(*arguments, code=None)
    return result.exit_code, " ".join(result.output.split()), file


def deploy_of(spec: ClusterSpec) -> AwsDeploy:
    assert isinstance(spec.regions[0].deploy, AwsDeploy)
    return spec.regions[0].deploy


def test_a_spec_gets_its_deploy_section_and_keeps_the_rest(tmp_path: Path, outputs: dict[str, Any]) -> None:
    status, _, file = run(tmp_path, outputs, SPEC + MODELS)
    assert status == 0
    spec = load_spec(file)
    deploy = deploy_of(spec)
    assert deploy.head_instance_profile == "arn:aws:iam::123456789012:instance-profile/raylane-eu-central-1-head"
    assert deploy.instance_profile.endswith("-worker")
    assert [(one.pool, one.reservation) for one in deploy.pools] == [
        ("l40s", "cr-0123456789abcdef0"),
        ("l40s-spot", None),
        ("gateways", None),
    ]
    assert (spec.gateway.timeouts.keep_alive_s, spec.gateway.lame_duck_s, spec.gateway.pool) == (960, 13, "gateways")
    assert (spec.gateway.host, spec.gateway.allow_public) == ("0.0.0.0", True)
    for line in SPEC.splitlines():
        assert line in file.read_text().splitlines()


def test_what_it_writes_is_what_the_launcher_asks_for(tmp_path: Path, outputs: dict[str, Any]) -> None:
    spec = load_spec(run(tmp_path, outputs, SPEC + MODELS)[2])
    region, made = spec.regions[0], outputs["raylane"]["value"]
    rendered = yaml.safe_load(launcher_files(spec, region, deploy_of(spec))[RAY_YAML])
    assert rendered["cluster_name"] == made["cluster"]
    for name, pool in made["pools"].items():
        asked = rendered["available_node_types"][name]["node_config"]
        assert asked["LaunchTemplate"]["LaunchTemplateId"] == pool["launch_template"]
        assert asked["IamInstanceProfile"] == {"Arn": pool["instance_profile"]}
        assert asked["SecurityGroupIds"] == pool["security_group_ids"]
        assert (asked["InstanceType"], asked["ImageId"]) == (pool["instance_type"], pool["image"])
        assert ("InstanceMarketOptions" in asked) == pool["spot"]


def test_a_second_time_changes_nothing(tmp_path: Path, outputs: dict[str, Any]) -> None:
    once = run(tmp_path, outputs, SPEC + MODELS)[2].read_text()
    status, printed, file = run(tmp_path, outputs, once)
    assert (status, file.read_text()) == (0, once)
    assert "nothing to change" in printed


def test_a_later_apply_changes_what_moved_and_keeps_what_it_does_not_know(
    tmp_path: Path, outputs: dict[str, Any]
) -> None:
    once = run(tmp_path, outputs, SPEC + MODELS)[2].read_text()
    own = once.replace("provider: aws\n", "provider: aws\n      ssh_user: ray   # ours\n").replace(
        "- pool: l40s-spot\n", "- pool: l40s-spot\n        min: 0\n"
    )
    outputs["raylane"]["value"]["pools"]["l40s"]["launch_template"] = "lt-99999999"
    outputs["raylane"]["value"]["subnet_ids"] = ["subnet-99999999"]
    status, printed, file = run(tmp_path, outputs, own)
    deploy = deploy_of(load_spec(file))
    assert (status, deploy.subnet_ids, deploy.ssh_user) == (0, ("subnet-99999999",), "ray")
    assert [(one.launch_template, one.min) for one in deploy.pools][:2] == [
        ("lt-99999999", None),
        ("lt-0123456789abcdef0", 0),
    ]
    assert "# ours" in file.read_text()
    assert "+ - subnet-99999999" in printed


def test_what_terraform_has_no_more_is_null_and_what_it_never_had_stays(
    tmp_path: Path, outputs: dict[str, Any]
) -> None:
    once = run(tmp_path, outputs, SPEC + MODELS)[2].read_text()
    own = once.replace("provider: aws\n", "provider: aws\n      region: us-west-2\n      head_volume_gib: 50\n")
    own = own.replace("- pool: l40s\n", "- pool: l40s\n        volume_gib: 500\n")
    outputs["raylane"]["value"] |= {"key_name": None, "head_group": None, "ssm": False}
    status, _, file = run(tmp_path, outputs, own)
    deploy = deploy_of(load_spec(file))
    gone = (deploy.region, deploy.head_volume_gib, deploy.key_name, deploy.ssh_key, deploy.head_group)
    assert (status, gone, deploy.ssm, deploy.pools[0].volume_gib) == (0, (None,) * 5, False, 500)
    assert run(tmp_path, outputs, file.read_text())[1].endswith("nothing to change")


def test_check_shows_and_writes_nothing(tmp_path: Path, outputs: dict[str, Any]) -> None:
    status, printed, file = run(tmp_path, outputs, SPEC + MODELS, "--check")
    assert (status, file.read_text()) == (1, SPEC + MODELS)
    assert "+ provider: aws" in printed


def test_without_a_spec_the_beginning_of_one_is_printed(tmp_path: Path, outputs: dict[str, Any]) -> None:
    (tmp_path / "outputs.json").write_text(json.dumps(outputs))
    result = ran("spec", "from-terraform", str(tmp_path / "outputs.json"))
    spec = parse_spec(result.output + MODELS)
    assert spec.cell_name(spec.regions[0]) == "raylane-eu-central-1"
    assert [(pool.name, pool.accelerator, pool.gpus) for pool in spec.regions[0].pools] == [
        ("l40s", "L40S", 4),
        ("l40s-spot", "L40S", 4),
        ("gateways", "cpu", 0),
    ]
    assert run(tmp_path, outputs, result.output + MODELS)[1].endswith("nothing to change")


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("cluster", "other-eu-central-1", "raylane.value.cluster = 'other-eu-central-1'"),
        ("gateway.total_s", 600, ".gateway.total_s = 600: the spec has gateway.timeouts.total_s = 900"),
        ("gateway.port", 9000, "raylane.value.gateway.port = 9000"),
        ("gateway.drain_s", "soon", "raylane.value.gateway.drain_s = 'soon': allowed: a number"),
        ("pools.l40s.kind", "driver", ".pools.l40s.kind = 'driver': allowed: head, gateway, worker"),
        ("pools.l40s.spot", True, "raylane.value.pools.l40s.spot = True: the spec has False"),
        ("pools.l40s.launch_template", "template", "launch_template = 'template'"),
        ("pools.head.kind", "worker", "raylane.value.pools"),
        ("subnet_ids", [], "raylane.value.subnet_ids = []"),
        ("speed", 1, "raylane.value.speed = 1: unknown key"),
        ("secret", None, "raylane.value.secret = None"),
    ],
)
def test_bad_outputs_name_the_field(tmp_path: Path, outputs: dict[str, Any], path: str, value: Any, named: str) -> None:
    *sections, last = path.split(".")
    section = outputs["raylane"]["value"]
    for step in sections:
        section = section[step]
    section[last] = value
    status, printed, file = run(tmp_path, outputs, SPEC + MODELS)
    assert (status, file.read_text()) == (2, SPEC + MODELS)
    assert named in printed


ELSEWHERE = "    deploy: {provider: kubernetes, image: registry/raylane, pools: [{pool: l40s, memory_gib: 64}, "
ELSEWHERE += "{pool: l40s-spot, memory_gib: 64}, {pool: gateways, memory_gib: 8}]}\n"
BAD_SPECS = {
    "gateways behind no load balancer": (
        SPEC.replace("gateway:\n", "gateway:\n  pool: l40s\n") + MODELS,
        "gateway.pool = 'l40s': allowed: gateways, a pool of gateways",
    ),
    "gateways open to everybody": (
        SPEC + MODELS.splitlines()[0] + "\n",
        "gateway.host = '127.0.0.1': the load balancer cannot reach it; needed: 0.0.0.0",
    ),
    "a pool too few": (
        SPEC.replace("      - {name: l40s-spot, accelerator: L40S, gpus_per_node: 4, spot: true}\n", "") + MODELS,
        "raylane.value.pools.l40s-spot: not in regions.eu-central-1.pools; needed there: {name: l40s-spot",
    ),
    "a region that runs elsewhere": (
        SPEC.replace("gateway:\n", ELSEWHERE + "gateway:\n") + MODELS,
        "regions.eu-central-1.deploy.provider = 'kubernetes': allowed: aws, or none",
    ),
}


@pytest.mark.parametrize("case", BAD_SPECS)
def test_a_spec_that_contradicts_the_outputs_is_left_as_it_is(
    tmp_path: Path, outputs: dict[str, Any], case: str
) -> None:
    text, named = BAD_SPECS[case]
    status, printed, file = run(tmp_path, outputs, text)
    assert (status, file.read_text()) == (2, text)
    assert named in printed


def test_a_pool_that_only_the_spec_has_is_named(tmp_path: Path, outputs: dict[str, Any]) -> None:
    del outputs["raylane"]["value"]["pools"]["l40s-spot"]
    status, printed, _ = run(tmp_path, outputs, SPEC + MODELS)
    assert status == 2
    assert "regions.eu-central-1.pools.l40s-spot: not in raylane.value.pools" in printed


@pytest.mark.parametrize(
    ("text", "named"),
    [("{", "is not JSON"), ("[" * 100_000, "is not JSON"), ("{}", "raylane: missing"), ("[]", "outputs.json")],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "outputs.json").write_text(text)
    assert named in " ".join(ran("spec", "from-terraform", str(tmp_path / "outputs.json"), code=2).output.split())
