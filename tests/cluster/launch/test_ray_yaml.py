"""What `ray up` gets is valid by Ray's own schema and preparation, and its scripts start Ray as the spec says."""

import configparser
import json
import os
import shutil
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from cluster.launch import RAY_YAML, launcher_files
from cluster.spec import ClusterSpec
from tests.cluster.launch.specs import AWS, LOCAL, ZONED_AWS, changed, spec_of


def rendered(spec: ClusterSpec) -> dict[str, str]:
    region = spec.regions[0]
    assert region.deploy is not None
    assert region.deploy.provider != "kubernetes"
    return launcher_files(spec, region, region.deploy)


def cluster_of(spec: ClusterSpec) -> dict[str, Any]:
    content = yaml.safe_load(rendered(spec)[RAY_YAML])
    assert isinstance(content, dict)
    return content


@pytest.mark.parametrize("region", [LOCAL, AWS, ZONED_AWS], ids=["local", "aws", "zones"])
def test_rays_schema_accepts_it(region: dict[str, Any]) -> None:
    ray = find_spec("ray")
    assert ray is not None
    assert ray.origin is not None
    schema = json.loads((Path(ray.origin).parent / "autoscaler" / "ray-schema.json").read_text())
    assert list(Draft7Validator(schema).iter_errors(cluster_of(spec_of(region)))) == []
    assert list(Draft7Validator(schema).iter_errors({**cluster_of(spec_of(region)), "speed": 1})) != []


@pytest.mark.whole
@pytest.mark.parametrize("region", [LOCAL, AWS], ids=["local", "aws"])
def test_rays_launcher_prepares_it(region: dict[str, Any]) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(cluster_of(spec_of(region)))
    validate_config(prepared)
    assert prepared["max_workers"] == (3 if region is LOCAL else 6)


def test_the_head_of_aws_offers_nothing_and_has_no_pool() -> None:
    types = cluster_of(spec_of(AWS))["available_node_types"]
    assert types["head"]["resources"] == {"CPU": 0, "GPU": 0}
    assert "labels" not in types["head"]
    assert types["l40s"]["labels"] == {"raylane.io/pool": "l40s"}
    assert (types["spot"]["min_workers"], types["spot"]["max_workers"]) == (0, 4)
    assert types["spot"]["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert "InstanceMarketOptions" not in types["l40s"]["node_config"]
    for one in types.values():
        assert one["node_config"]["MetadataOptions"]["HttpTokens"] == "required"


def test_every_text_is_the_same_wherever_it_is_rendered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = rendered(spec_of(LOCAL))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert rendered(spec_of(LOCAL)) == first
    assert yaml.safe_load(first[RAY_YAML])["file_mounts"] == {
        "~/.raylane/team-here/node": "node",
        "~/.raylane/team-here/secrets": "secrets",
    }


class Host:
    """A home directory with the rendered files, and a `ray` that says how it was called."""

    def __init__(self, folder: Path, region: dict[str, Any]) -> None:
        self.home = folder / "home"
        venv = folder / "venv"
        (venv / "bin").mkdir(parents=True)
        self.folder, self.tools = folder, venv / "bin"
        for name in ("ray", "raylane"):
            self.tool(name, f'env > "{folder}/{name}.env"\nprintf "%s\\n" "$@" > "{folder}/{name}.argv"')
        self.spec = spec_of(changed(region, venv=str(venv)))
        self.cell = self.home / ".raylane" / self.spec.cell_name(self.spec.regions[0])
        for name, text in rendered(self.spec).items():
            (self.cell / name).parent.mkdir(parents=True, exist_ok=True)
            (self.cell / name).write_text(text)

    def tool(self, name: str, script: str) -> None:
        (self.tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.tools / name).chmod(0o755)

    def without_root(self) -> str:
        """The PATH of somebody who is not root: what needs root is asked of `sudo`, which does nothing."""
        self.tool("sudo", "")
        (self.tools / "id").symlink_to("/bin/true")
        return f"{self.tools}:{os.environ['PATH']}"

    def run(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), **variables}
        command = ["sh", str(self.cell / "node" / script), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def called(self, tool: str = "ray") -> tuple[list[str], dict[str, str]]:
        lines = (self.folder / f"{tool}.env").read_text().splitlines()
        return (self.folder / f"{tool}.argv").read_text().splitlines(), dict(line.partition("=")[::2] for line in lines)


def test_the_head_starts_with_its_store_and_without_resources(tmp_path: Path) -> None:
    host = Host(tmp_path, LOCAL)
    done = host.run("start-head", "--block")
    assert done.returncode == 0, done.stderr
    argv, environment = host.called()
    assert argv[:2] == ["start", "--head"]
    assert {"--num-cpus=0", "--num-gpus=0", "--node-ip-address=10.77.0.2", "--block"} <= set(argv)
    assert not any("labels" in argument for argument in argv)
    assert environment["RAY_gcs_storage"] == "rocksdb"
    assert environment["RAY_gcs_storage_path"] == str(host.cell / "gcs")
    assert (host.cell / "gcs").is_dir()
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_AUTH_TOKEN_PATH"] == str(host.cell / "secrets" / "ray_token")
    assert environment["HF_HOME"] == "/srv/it's here"
    assert (host.cell / "run").stat().st_mode & 0o777 == 0o700


def test_a_head_restores_what_a_deployment_has_left_there_and_nothing_else(tmp_path: Path) -> None:
    host = Host(tmp_path, LOCAL)
    host.tool("python", f'printf "%s\\n" "$@" > "{tmp_path}/part"; mv "{tmp_path}/part" "{tmp_path}/python.argv"')
    assert host.run("start-head").returncode == 0
    kept = host.cell / "serve" / "applications.json"
    kept.parent.mkdir()
    kept.write_text("{}")
    assert not (tmp_path / "python.argv").exists(), "nothing has been deployed"
    assert host.run("start-head").returncode == 0
    deadline = time.monotonic() + 60
    while not (tmp_path / "python.argv").exists() and time.monotonic() < deadline:
        time.sleep(0.01)  # it runs beside the script
    assert host.called("ray")[0][:2] == ["start", "--head"]
    workers = len(LOCAL["deploy"]["workers"])
    assert (tmp_path / "python.argv").read_text().split() == ["-m", "cli.deploy.restore", str(kept), str(workers)]


def test_a_head_of_listed_machines_runs_rays_first_autoscaler_whatever_the_launcher_says(tmp_path: Path) -> None:
    """Ray's launcher says the second one, which would not start all workers."""
    host = Host(tmp_path, LOCAL)
    assert host.run("start-head", RAY_enable_autoscaler_v2="1", RAY_CLOUD_INSTANCE_ID="10.77.0.2").returncode == 0
    assert host.called()[1]["RAY_enable_autoscaler_v2"] == "0"


FROM_LAUNCHER = {"RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": "i-0123", "RAY_NODE_TYPE_NAME": "head"}


@pytest.mark.parametrize("script", ["install-head-service", "start-head"])
def test_a_head_of_aws_keeps_the_variables_of_the_launcher(tmp_path: Path, script: str) -> None:
    """systemd starts it without the launcher; the second autoscaler then needs to know which instance is the head."""
    host = Host(tmp_path, AWS)
    done = host.run(script, PATH=host.without_root(), **FROM_LAUNCHER)
    assert done.returncode == 0, done.stderr
    assert host.run("start-head", "--block").returncode == 0
    environment = host.called()[1]
    assert FROM_LAUNCHER.items() <= environment.items()


def test_a_head_that_takes_anothers_place_gets_what_the_launcher_gave_that_one(tmp_path: Path) -> None:
    """It has the cell's folder, on the disk of the one before, and a home without anything else."""
    host = Host(tmp_path, changed(AWS, head_group="heads", key_name="mine", ssh_key="~/.ssh/mine"))
    path = host.without_root()
    given = {"ray_bootstrap_config.yaml": "cluster_name: a\n", "ray_bootstrap_key.pem": "the key\n"}
    for name, text in given.items():
        (host.home / name).write_text(text)
        (host.home / name).chmod(0o600)
    assert host.run("install-head-service", PATH=path, **FROM_LAUNCHER).returncode == 0
    for name in given:
        (host.home / name).unlink()
    next_one = FROM_LAUNCHER | {"RAY_CLOUD_INSTANCE_ID": "i-0456"}
    done = host.run("install-head-service", PATH=path, **next_one)
    assert done.returncode == 0, done.stderr
    assert {name: (host.home / name).read_text() for name in given} == given
    assert (host.home / "ray_bootstrap_key.pem").stat().st_mode & 0o777 == 0o600
    assert host.run("start-head", "--block").returncode == 0
    assert host.called()[1]["RAY_CLOUD_INSTANCE_ID"] == "i-0456"


def test_a_head_that_no_launcher_has_started_starts(tmp_path: Path) -> None:
    host = Host(tmp_path, AWS)
    assert host.run("start-head").returncode == 0
    assert "RAY_CLOUD_INSTANCE_ID" not in host.called()[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it looks at processes of its own alone")
@pytest.mark.parametrize("service", ["systemd", "none"])
def test_a_head_that_is_stopped_leaves_no_unit_and_no_state(tmp_path: Path, service: str) -> None:
    host = Host(tmp_path, changed(LOCAL, head_service=service))
    noted = tmp_path / "noted"
    host.without_root()
    for name in ("sudo", "ray"):
        host.tool(name, f'echo {name} "$@" >> {noted}')
    (host.cell / "gcs").mkdir()
    done = host.run("stop-head")
    assert done.returncode == 0, done.stderr
    lines = noted.read_text().splitlines()
    assert lines[-1] == "ray stop", "after its unit, which would start it again"
    assert ("sudo -n systemctl stop raylane-head-team-here.service" in lines) == (service == "systemd")
    assert not (host.cell / "gcs").exists()


def test_a_worker_kills_its_raylet_and_waits_for_its_gateway_before_ray_stops_all(tmp_path: Path) -> None:
    host = Host(tmp_path, LOCAL)
    noted, pid = tmp_path / "noted", tmp_path / "pid"
    (tmp_path / "raylet").mkdir()
    raylet = tmp_path / "raylet" / "raylet"
    raylet.symlink_to(shutil.which("sleep") or "sleep")
    gateway = tmp_path / "gateway.sh"
    gateway.write_text(f"while kill -0 $(cat {pid}); do sleep 0.1; done; sleep 0.5; echo gateway >> {noted}\n")
    host.tool("ray", f'echo "ray $*" >> {noted}')
    inside = (
        f"{raylet} 60 & echo $! > {pid}; exec -a ray::ServeReplica:gateway:gateway bash {gateway} & sleep 0.3; "
        f"sh {host.cell}/node/stop-worker; sh {host.cell}/node/stop-worker"
    )
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", inside]
    subprocess.run(command, env={"PATH": os.environ["PATH"], "HOME": str(host.home)}, check=True, timeout=30)
    assert noted.read_text().splitlines() == ["gateway", "ray stop", "ray stop"]


def test_a_worker_finds_its_pool_by_its_address(tmp_path: Path) -> None:
    own = next(one for one in subprocess.check_output(["hostname", "-I"], text=True).split() if "." in one)
    workers = [{"address": "10.77.0.3", "pool": "cpu"}, {"address": "10.77.0.4", "pool": "cpu"}]
    host = Host(tmp_path, changed(LOCAL, workers=[*workers, {"address": own, "pool": "gpu"}]))
    done = host.run("start-worker", RAY_HEAD_IP="10.77.0.2")
    assert done.returncode == 0, done.stderr
    argv, environment = host.called()
    assert {f"--node-ip-address={own}", "--labels=raylane.io/pool=gpu", "--num-gpus=4"} <= set(argv)
    assert "--address=10.77.0.2:6379" in argv
    assert "RAY_gcs_storage" not in environment


def test_a_worker_of_no_known_address_does_not_start(tmp_path: Path) -> None:
    host = Host(tmp_path, LOCAL)
    done = host.run("start-worker", RAY_HEAD_IP="10.77.0.2")
    assert done.returncode == 1
    assert "is that of a worker in the spec" in done.stderr
    assert not (tmp_path / "ray.argv").exists()


def test_a_node_of_aws_fetches_the_secrets_first(tmp_path: Path) -> None:
    host = Host(tmp_path, AWS)
    assert host.run("start-worker", RAY_HEAD_IP="10.0.0.1", RAY_OVERRIDE_LABELS='{"a": "b"}').returncode == 0
    assert host.called("raylane")[0] == [
        *("secrets", "fetch", "raylane/team-us-east-1", "--aws-region", "us-east-1"),
        *("--into", str(host.cell / "secrets")),
    ]
    argv, environment = host.called()
    assert argv == ["start", "--address=10.0.0.1:6379"]
    assert environment["RAY_OVERRIDE_LABELS"] == '{"a": "b"}', "the launcher's labels reach Ray"


def test_the_unit_restarts_the_head(tmp_path: Path) -> None:
    host = Host(tmp_path, LOCAL)
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(rendered(host.spec)["node/head.service"])
    service = unit["Service"]
    assert (service["Restart"], service["User"], service["KillMode"]) == ("always", "root", "control-group")
    # systemd's own: $$ is a dollar, and quotes are the shell's.
    command = service["ExecStart"].replace("$$", "$")
    subprocess.run(["sh", "-c", command], env={"PATH": os.environ["PATH"], "HOME": str(host.home)}, check=True)
    assert host.called()[0][-1] == "--block"


def test_scripts_have_no_error_of_syntax(tmp_path: Path) -> None:
    for region in (LOCAL, AWS):
        for name, text in rendered(spec_of(region)).items():
            if text.startswith("#!/bin/sh"):
                subprocess.run(["sh", "-n"], input=text, text=True, check=True, cwd=tmp_path)
                assert all(len(line) <= 200 for line in text.splitlines()), name
