"""The Terraform tree: formatted, valid against the schema of AWS's provider, and its modules' own tests pass.

Nothing is applied, and AWS is never asked.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from ipaddress import ip_network
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from tests.infra.conftest import ROOT, Terraform

TREE = ROOT / "terraform"
REGION = "regions/eu-central-1"
WITH_VALUES = sorted(str(file.parent.relative_to(TREE)) for file in TREE.glob("*/*/terraform.tfvars.example"))
FOLDERS = sorted(str(file.parent.relative_to(TREE)) for file in TREE.glob("*/*/main.tf"))
SECRET_TYPES = r'"(aws_secretsmanager_secret_version|aws_ssm_parameter|aws_iam_access_key|random_\w+|tls_private_key)"'


def sources() -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(TREE.rglob("*.tf")))


def resources(module: dict[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    """The resources of a type in a module of the state, and in those that it calls."""
    yield from (one for one in module.get("resources", ()) if one["type"] == kind)
    for child in module.get("child_modules", ()):
        yield from resources(child, kind)


@pytest.fixture(scope="module")
def state(terraform: Terraform) -> dict[str, Any]:
    return terraform.state(terraform.tree / REGION)


@pytest.mark.whole
def test_it_is_formatted() -> None:
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not on this machine")
    done = subprocess.run(
        ["terraform", "fmt", "-check", "-recursive", "-diff"], cwd=TREE, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_no_secret_can_reach_the_state() -> None:
    assert re.findall(SECRET_TYPES, sources()) == []
    assert not re.search(r"^\s*(secret_string|password|secret_key)\s*=", sources(), re.MULTILINE)


@pytest.mark.long
@pytest.mark.parametrize("folder", FOLDERS)
def test_it_is_valid_and_passes_its_own_tests(terraform: Terraform, folder: str) -> None:
    assert terraform.problems(terraform.tree / folder) == []
    done = terraform.tested(terraform.tree / folder, "-no-color")
    assert done.returncode == 0, done.stdout + done.stderr
    if (TREE / folder / "tests").is_dir():
        assert re.search(r"[1-9]\d* passed, 0 failed", done.stdout), done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "pattern", "replacement", "problem"),
    [
        ("modules/region/main.tf", r"\n  gateway_port +=.*", "", "Missing required argument"),
        ("modules/region/main.tf", r"gateway_port( +=)", r"gateway_prot\1", "Unsupported argument"),
        ("modules/region/main.tf", r"module\.network\.vpc_id", "module.network.vpc", "Unsupported attribute"),
        ("modules/capacity/main.tf", r"http_tokens( +=)", r"http_token\1", "Unsupported argument"),
        ("modules/secrets/main.tf", r"aws_secretsmanager_secret", "aws_secretmanager_secret", "Invalid resource type"),
        ("modules/key/main.tf", r"\n  target_key_id.*", "", "Missing required argument"),
    ],
)
def test_a_mistake_is_found(
    terraform: Terraform, tmp_path: Path, file: str, pattern: str, replacement: str, problem: str
) -> None:
    tree = shutil.copytree(TREE, tmp_path / "tree", ignore=shutil.ignore_patterns(".terraform"))
    text = (tree / file).read_text(encoding="utf-8")
    changed = re.sub(pattern, replacement, text, count=1)
    assert changed != text
    (tree / file).write_text(changed, encoding="utf-8")
    assert [one for one in terraform.problems(tree / REGION) if one.startswith(problem)]


@pytest.mark.whole
def test_the_endpoint_alone_is_open_to_the_internet(state: dict[str, Any]) -> None:
    rules = [one["values"] for one in resources(state["root_module"], "aws_vpc_security_group_ingress_rule")]
    public = [one for one in rules if one["cidr_ipv4"] == "0.0.0.0/0" or one["cidr_ipv6"]]
    assert [(one["from_port"], one["to_port"], one["security_group_id"]) for one in public] == [
        (443, 443, "sg-44444444444444444")
    ]
    assert len(rules) > 5
    assert list(resources(state["root_module"], "aws_security_group_rule")) == []
    groups = list(resources(state["root_module"], "aws_security_group"))
    assert [one["address"] for one in groups if one["values"]["ingress"]] == []


@pytest.mark.whole
def test_the_outputs_are_those_that_the_spec_is_tested_with(state: dict[str, Any]) -> None:
    assert state["outputs"] == json.loads((ROOT / "tests" / "infra" / "outputs.json").read_text())


@pytest.mark.long
def test_a_region_without_public_addresses_has_no_check_of_route_53(terraform: Terraform, tmp_path: Path) -> None:
    folder = shutil.copytree(TREE, tmp_path / "tree", ignore=shutil.ignore_patterns(".terraform")) / "global/dns"
    values = folder / "tests/dns.tftest.hcl"
    values.write_text(values.read_text().replace('"Z35SXDOTRQ7X7K" }', '"Z35SXDOTRQ7X7K", public = false }'))
    checks = resources(terraform.state(folder)["root_module"], "aws_route53_health_check")
    assert [one["index"] for one in checks] == ["eu-central-1"]


@pytest.mark.whole
def test_nodes_stand_in_private_subnets(state: dict[str, Any]) -> None:
    assert len(state["outputs"]["raylane"]["value"]["subnet_ids"]) == 3
    assert not any(one["values"]["map_public_ip_on_launch"] for one in resources(state["root_module"], "aws_subnet"))
    assert list(resources(state["root_module"], "aws_instance")) == []


def test_what_takes_values_has_an_example_of_them() -> None:
    assert WITH_VALUES == ["global/dns", "regions/eu-central-1", "regions/us-east-1"]


@pytest.mark.parametrize("folder", WITH_VALUES)
def test_the_example_values_name_the_variables(folder: str) -> None:
    declared = set(re.findall(r'^variable "(\w+)"', (TREE / folder / "variables.tf").read_text(), re.MULTILINE))
    given = set(re.findall(r"^(\w+) +=", (TREE / folder / "terraform.tfvars.example").read_text(), re.MULTILINE))
    assert given == declared


def test_regions_differ_in_values_alone() -> None:
    """So that a third one is a copy, too."""
    for name in ("main.tf", "outputs.tf", "variables.tf"):
        assert len({(TREE / "regions" / one / name).resolve() for one in ("eu-central-1", "us-east-1")}) == 1


@pytest.mark.whole
def test_each_region_has_a_way_to_the_endpoint_of_the_other(terraform: Terraform) -> None:
    """By route, by rule, and by address: a public one, through NAT."""
    states = {one: terraform.state(terraform.tree / "regions" / one) for one in ("eu-central-1", "us-east-1")}

    def values(region: str, kind: str) -> list[dict[str, Any]]:
        return [one["values"] for one in resources(states[region]["root_module"], kind)]

    def named(region: str, name: str) -> list[dict[str, Any]]:
        return [
            one["values"]
            for kind in ("aws_route_table", "aws_vpc_security_group_egress_rule", "aws_vpc_security_group_ingress_rule")
            for one in resources(states[region]["root_module"], kind)
            if re.search(rf"\.{kind}\.{name}\[", one["address"])
        ]

    networks = [ip_network(values(one, "aws_vpc")[0]["cidr_block"]) for one in states]
    assert not networks[0].overlaps(networks[1])
    for here, there in permutations(states):
        ways = {one["route_table_id"]: one for one in values(here, "aws_route") if one["nat_gateway_id"]}
        tables = named(here, "private")
        assert [one["id"] for one in tables] == list(ways)
        assert len(tables) == 3
        assert {one["destination_cidr_block"] for one in ways.values()} == {"0.0.0.0/0"}
        assert not values(there, "aws_lb")[0]["internal"], "a public endpoint"
        (out,) = named(here, "nodes_internet")
        assert (out["cidr_ipv4"], out["from_port"], out["to_port"]) == ("0.0.0.0/0", 443, 443)
        admitted = [ip_network(one["cidr_ipv4"]) for one in named(there, "endpoint") if one["from_port"] == 443]
        own = [ip_network(one) for one in states[here]["outputs"]["nat_cidrs"]["value"]]
        assert own
        assert all(any(one.subnet_of(of) for of in admitted) for one in own)


@pytest.mark.whole
def test_policies_are_json_that_names_no_star_action(state: dict[str, Any]) -> None:
    """Roles' policies; the key's own names the account, as AWS asks."""
    policies = list(resources(state["root_module"], "aws_iam_role_policy"))
    assert len(policies) >= 8
    for policy in policies:
        for statement in json.loads(policy["values"]["policy"])["Statement"]:
            actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
            assert [one for one in actions if "*" in one] == [], policy["address"]
