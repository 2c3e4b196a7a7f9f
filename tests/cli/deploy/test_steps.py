"""A deployment that is broken off anywhere, any number of times, and run again ends as one that was not."""

import itertools
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cli.deploy import programs, serve_api, steps
from cli.deploy import state as state_module
from cli.deploy.changes import plan_of
from cli.deploy.record import Applied, HeadRecord
from cli.deploy.rendering import rendering_of
from cli.deploy.serve_api import DeployError, ServeApi
from cli.deploy.state import DeployState
from cluster import secrets as secrets_module
from cluster.secrets import CellSecrets, SecretsFolder, SecretsUnavailable
from cluster.spec import AwsDeploy, ClusterSpec, LocalDeploy
from deployments.deployed import keys_digest
from tests.cluster.launch.specs import AWS, LOCAL, MODEL, PUBLIC, changed, spec_of

TENANTS = [{"name": "search", "keys": ["sha256:" + "cd" * 32]}]
COMMON = {**PUBLIC, "gateway": {**PUBLIC["gateway"], "pool": "cpu", "replicas": 2}}
SPECS = {
    "first": spec_of(LOCAL, **COMMON),
    "model": spec_of(LOCAL, **COMMON, models=[{**MODEL, "replicas": {"count": 1}}]),
    "settings": spec_of(LOCAL, **COMMON, models=[{**MODEL, "settings": {"max_model_len": 512}}]),
    "keys": spec_of(LOCAL, **{**COMMON, "tenants": TENANTS}),
    "nodes": spec_of(changed(LOCAL, environment={"A": "b"}), **COMMON),
}
WORKERS = {str(one["address"]) for one in LOCAL["deploy"]["workers"]}


class BrokenOff(BaseException):
    """The process was killed here."""


class Machines:
    """The region's machines: what `ray up` and Serve's REST API have made of them. Each operation counts, those on the
    files of the machine that deploys too; the process is killed before or after the one that `break_off` names."""

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, str] | None = None
        self.secrets: CellSecrets | None = None
        self.config: Mapping[str, Any] | None = None
        self.kept: Mapping[str, Any] | None = None
        self.log: list[str] = []
        self.left: int | None = None
        self.fails, self.numbers = False, itertools.count()
        """No replica of a model starts that is deployed from now on."""
        self.hangs = False
        """Ray's processes are there, and its REST API does not answer."""
        self.workers: list[set[str]] = [WORKERS]
        """What the head answers one after the other; the last one again and again."""
        self._folder = folder

    def counted(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            self._tick()
            done = operation(*arguments)
            self._tick()
            return done

        return run

    def _tick(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                raise BrokenOff

    def run(self, command: list[str], folder: Path, log: Path | None = None) -> None:
        """`ray up`, rsync of the secrets to one machine, or what the head keeps of the applications."""
        if command[0] == "ssh":
            if "grep -q" in command[-1] and not (self.files or self.hangs):
                raise DeployError("no such process")
            if command[-1].startswith("rm "):
                self.log.append("forget")
                self.kept = None
            return
        if "serve-config.json" in command:
            self.log.append("keep")
            self.kept = json.loads((folder / "serve-config.json").read_text())
            return
        self.log.append("up" if "up" in command else "send")
        self.secrets = SecretsFolder(folder / "secrets").read()
        assert self.secrets is not None, "no node starts without secrets"
        if "up" in command:
            self.files = {str(path.relative_to(folder)): path.read_text() for path in (folder / "node").iterdir()}
            self.files["yaml"] = (folder / "ray-cluster.yaml").read_text()

    def put(self, config: Mapping[str, Any]) -> None:
        self.log.append("put")
        self.config = json.loads(json.dumps(config))


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    made = Machines(tmp_path)
    monkeypatch.setenv("RAYLANE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(steps, "run", made.counted(made.run))
    monkeypatch.setattr(state_module, "write_whole", made.counted(state_module.write_whole))
    monkeypatch.setattr(HeadRecord, "write", made.counted(HeadRecord.write))
    monkeypatch.setattr(secrets_module, "write_private", made.counted(secrets_module.write_private))

    class Api(ServeApi):
        def __init__(self) -> None:
            """Without a connection."""

        def applications(self) -> dict[str, Any]:
            config = made.config or {"applications": []}
            states = {"old": "RUNNING", **({f"new{next(made.numbers)}": "STARTING"} if made.fails else {})}
            replicas = [{"replica_id": name, "state": state} for name, state in states.items()]
            one = {"replicas": replicas, "message": "no such file"}
            status = "DEPLOYING" if made.fails else "RUNNING"
            return {
                app["name"]: {"status": status, "deployments": {"one": one}, "message": "", "deployed_app_config": app}
                for app in config["applications"]
            }

        def workers(self) -> set[str]:
            made.log.append("look")
            return set(made.workers.pop(0) if len(made.workers) > 1 else made.workers[0])

        def put(self, config: Mapping[str, Any]) -> None:
            made.counted(made.put)(config)

    @contextmanager
    def api(hosts: steps.Hosts) -> Iterator[ServeApi]:
        if made.files is None or made.hangs:
            raise DeployError("no head")
        assert made.secrets is not None
        assert hosts._token == made.secrets.ray_token, "the head refuses any other token"
        yield Api()

    monkeypatch.setattr(steps.Hosts, "_api", api)
    monkeypatch.setattr(steps.Hosts, "_check_hosts", lambda *_: None)
    return made


def hosts_of(spec: ClusterSpec) -> steps.Hosts:
    """With a record as the head's machine keeps it, in a folder of this one."""
    region = spec.regions[0]
    assert isinstance(region.deploy, LocalDeploy)
    state = DeployState(spec.cell_name(region))
    record = HeadRecord(["env", f"HOME={os.environ['RAYLANE_HOME']}/head", "sh", "-c"], spec.cell_name(region))
    return steps.Hosts(spec, region, region.deploy, state, SecretsFolder(state.secrets), record)


def deploy(spec: ClusterSpec, machines: Machines, break_off: int | None = None) -> bool:
    """Runs the command's steps; whether there was nothing to do."""
    machines.left = break_off
    hosts = hosts_of(spec)
    with DeployState("team-here").lock() as is_ours:
        assert is_ours
        keys = {tenant.name: tenant.keys for tenant in spec.tenants} | hosts.shared_secrets()
        plan = plan_of(rendering_of(spec, spec, spec.regions[0]), keys_digest(keys), hosts.record.read())
        if plan.is_nothing and hosts.is_up():
            return True
        hosts.apply(plan)
    return False


def is_as_the_spec_says(spec: ClusterSpec, machines: Machines) -> None:
    rendering = rendering_of(spec, spec, spec.regions[0])
    state = DeployState("team-here")
    assert machines.config == json.loads(json.dumps(rendering.applications))
    assert machines.kept == machines.config, "the head can restore what runs"
    assert machines.files is not None
    assert machines.files["yaml"] == rendering.cluster["ray-cluster.yaml"]
    assert all(machines.files[name] == text for name, text in rendering.cluster.items() if name in machines.files)
    kept = SecretsFolder(state.secrets).read()
    assert kept is not None
    assert machines.secrets is not None
    assert kept == machines.secrets, "the nodes have the keys and the token that are kept"
    assert kept.tenant_keys == {tenant.name: list(tenant.keys) for tenant in spec.tenants}
    assert hosts_of(spec).record.read().files == rendering.files
    written = {str(path.relative_to(state.files)) for path in state.files.rglob("*") if path.is_file()}
    assert {name for name in written if not name.startswith("secrets/")} == set(rendering.files)


@pytest.mark.whole
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(SPECS)),
            st.lists(st.tuples(st.sampled_from(sorted(SPECS)), st.integers(1, 30)), max_size=3),
        ),
        max_size=3,
    )
)
@example([("keys", []), ("keys", [("first", 4)])])
def test_broken_off_and_run_again_it_ends_right(
    machines: Machines, tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[str, list[tuple[str, int]]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYLANE_HOME", str(tmp_path_factory.mktemp("home")))
        machines.files = machines.secrets = machines.config = machines.kept = None
        for name, breaks in rounds:
            for other, after in breaks:  # of the same spec, or of one that somebody thought better of
                try:
                    deploy(SPECS[other], machines, after)
                except BrokenOff:
                    continue
            deploy(SPECS[name], machines)
            is_as_the_spec_says(SPECS[name], machines)
            assert deploy(SPECS[name], machines), "a second time there is nothing to do"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "log"),
    [
        ("model", ["put", "keep"]),
        ("keys", ["send"] * 4 + ["put", "keep"]),
        ("nodes", ["forget", "up", "look", "put", "keep"]),
    ],
)
def test_a_change_does_what_it_needs_and_no_more(machines: Machines, name: str, log: list[str]) -> None:
    assert not deploy(SPECS["first"], machines)
    assert deploy(SPECS["first"], machines)
    machines.log.clear()
    assert not deploy(SPECS[name], machines)
    assert machines.log == log
    is_as_the_spec_says(SPECS[name], machines)


@pytest.mark.parametrize("is_named", [True, False], ids=["another folder", "beside the cell's own"])
def test_a_secret_that_cells_share_reaches_the_nodes_when_it_comes_and_when_it_changes(
    machines: Machines, tmp_path: Path, is_named: bool
) -> None:
    folder = tmp_path / "external" if is_named else DeployState("team-here").secrets
    source = {"kind": "file"} | ({"folder": str(folder)} if is_named else {})
    external = {"url": "https://a/v1", "secret": source, "models": {"demo": "m"}, "tenants": {"search": 1}}
    spec = spec_of(LOCAL, **COMMON, external={**external, "usd_per_mtok_in": 1, "usd_per_mtok_out": 1})
    deploy(SPECS["first"], machines)
    with pytest.raises(SecretsUnavailable, match=r"external\.secret: .*external_key: missing; needed"):
        deploy(spec, machines)
    folder.mkdir(exist_ok=True)
    for key in ("the first key", "the second key"):
        (folder / "external_key").write_text(key)
        machines.log.clear()
        assert not deploy(spec, machines)
        assert machines.log == ["send"] * 4 + ["put", "keep"]
        assert (DeployState("team-here").secrets / "external_key").read_text() == key
        assert deploy(spec, machines)


def test_a_head_whose_rest_api_is_slow_is_left_as_it_is(machines: Machines) -> None:
    deploy(SPECS["first"], machines)
    machines.log.clear()
    machines.hangs = True
    for name in ("first", "model"):
        with pytest.raises(DeployError, match="its REST API does not answer; nothing was changed"):
            deploy(SPECS[name], machines)
    assert machines.log == []
    machines.hangs = False
    assert deploy(SPECS["first"], machines), "the record says what was there before"


def on_another_machine(machines: Machines, folder: Path, monkeypatch: pytest.MonkeyPatch) -> CellSecrets:
    """From now on another machine deploys. Returns the secrets, which the head's machine has, as `ray up` leaves it."""
    head, secrets = Path(os.environ["RAYLANE_HOME"], "head"), machines.secrets
    assert secrets is not None
    SecretsFolder(head / ".raylane/team-here/secrets").write(secrets)
    monkeypatch.setenv("RAYLANE_HOME", str(folder))
    folder.mkdir()
    (folder / "head").symlink_to(head)
    machines.log.clear()
    return secrets


def test_another_machine_finds_the_cell_and_its_secrets(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(SPECS["first"], machines)
    secrets = on_another_machine(machines, tmp_path / "other", monkeypatch)
    assert deploy(SPECS["first"], machines)
    assert machines.log == []
    deploy(SPECS["model"], machines)
    assert machines.log == ["put", "keep"], "no node gets new secrets, and Ray does not restart"
    assert machines.secrets == secrets
    is_as_the_spec_says(SPECS["model"], machines)


def test_other_secrets_than_the_cells_are_not_written(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(SPECS["first"], machines)
    on_another_machine(machines, tmp_path / "other", monkeypatch)
    SecretsFolder(DeployState("team-here").secrets).write(CellSecrets.new({}))
    machines.log.clear()
    with pytest.raises(DeployError, match="not the secrets of the cell 'team-here'; nothing was changed"):
        deploy(SPECS["model"], machines)
    assert machines.log == []


def test_a_cell_that_answers_and_is_not_recorded_is_left_as_it_is(machines: Machines) -> None:
    deploy(SPECS["first"], machines)
    shutil.rmtree(Path(os.environ["RAYLANE_HOME"], "head"))
    machines.log.clear()
    with pytest.raises(DeployError, match="nothing says what was deployed there; nothing was changed"):
        deploy(SPECS["model"], machines)
    assert machines.log == []


def test_one_deployment_at_a_time_holds_the_heads_lock(machines: Machines) -> None:
    first, second = (hosts_of(SPECS["first"]).record for _ in range(2))
    with (
        first.lock(),
        pytest.raises(DeployError, match=f"another deployment of the cell runs, by process {os.getpid()}"),
    ):
        second.lock().__enter__()
    with second.lock():
        pass


def test_a_head_that_is_not_reached_is_no_new_cell(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho no route to host >&2\nexit 255\n")
    ssh.chmod(0o755)
    record = HeadRecord([str(ssh), "root@10.77.0.2"], "team-here")
    with pytest.raises(DeployError, match=r"root@10\.77\.0\.2 does not answer: no route to host"):
        record.read()
    with pytest.raises(DeployError, match="no route to host"):
        record.lock().__enter__()


def test_a_change_that_cannot_start_is_given_up_and_the_spec_before_is_known(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(SPECS["first"], machines)
    machines.log.clear()
    deploy(SPECS["settings"], machines)
    assert machines.log == ["put", "keep"]
    is_as_the_spec_says(SPECS["settings"], machines)
    record, rendered = hosts_of(SPECS["first"]).record, rendering_of
    first = rendered(SPECS["first"], SPECS["first"], SPECS["first"].regions[0])
    assert record.read().way_back == first.content

    put = machines.put

    def failing(config: Mapping[str, Any]) -> None:
        machines.fails = True
        put(config)

    machines.put = failing  # type: ignore[method-assign]
    monkeypatch.setattr(serve_api, "_POLL_S", 0.0)
    with pytest.raises(DeployError, match=r"cannot run: no such file\nWhat ran before goes on"):
        deploy(SPECS["first"], machines)
    settings = rendered(SPECS["settings"], SPECS["settings"], SPECS["settings"].regions[0])
    assert record.read().way_back == settings.content
    assert machines.kept == settings.applications, "a head that loses its state gets what was whole"


def test_the_applications_wait_for_the_workers(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first one gets all replicas."""
    monkeypatch.setattr(steps, "_POLL_S", 0.0)
    machines.workers = [set(), {min(WORKERS)}, {min(WORKERS)}, WORKERS]
    deploy(SPECS["first"], machines)
    assert machines.log == ["up", *["look"] * 4, "put", "keep"]


def test_a_worker_that_does_not_join_is_named_and_keeps_nobody_waiting_for_ever(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steps, "_WORKERS_S", 0.0)
    missing = max(WORKERS)
    machines.workers = [WORKERS - {missing}]
    deploy(SPECS["first"], machines)
    is_as_the_spec_says(SPECS["first"], machines)
    said = capsys.readouterr()
    assert f"workers: {len(WORKERS) - 1} of {len(WORKERS)}" in said.out
    assert f"workers have not joined after 0 s: {missing}; going on without them" in said.err


@pytest.fixture
def reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the hosts that ssh has reached; 10.77.0.4 it does not."""
    noted, ssh = tmp_path / "ssh.log", tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(
        f'#!/bin/sh\nfor one in "$@"; do case $one in root@*) echo "$one" >> {noted}; host=$one ;; esac; done\n'
        'if [ "$host" = root@10.77.0.4 ]; then echo "no route to host" >&2; exit 255; fi\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    return noted


@pytest.mark.parametrize("is_deployed", [True, False], ids=["deploy", "down"])
def test_a_worker_that_leaves_the_spec_is_stopped(
    machines: Machines, reached: Path, capsys: pytest.CaptureFixture[str], is_deployed: bool
) -> None:
    deploy(SPECS["first"], machines)
    fewer = {**LOCAL, "pools": [LOCAL["pools"][1]]}
    spec = spec_of(changed(fewer, workers=LOCAL["deploy"]["workers"][2:]), **PUBLIC)
    if is_deployed:
        deploy(spec, machines)
    else:
        hosts = hosts_of(spec)
        hosts.down(hosts.record.read())
        assert hosts.record.read() == Applied()
    stopped = reached.read_text().splitlines()
    assert {"root@10.77.0.3", "root@10.77.0.4"} <= set(stopped)
    assert ("root@10.77.0.5" in stopped) is not is_deployed
    assert "it has left the spec, and Ray may still run on 10.77.0.4: no route to host" in capsys.readouterr().err


def test_down_stops_the_head_first_and_names_the_machines_that_it_did_not_reach(
    machines: Machines, reached: Path
) -> None:
    spec = SPECS["first"]
    deploy(spec, machines)
    hosts = hosts_of(spec)
    with pytest.raises(DeployError, match=r"Ray may still run on 10\.77\.0\.4: no route to host"):
        hosts.down(hosts.record.read())
    assert machines.config is not None
    assert machines.config["applications"] == [], "requests may finish first"
    stopped = reached.read_text().splitlines()
    assert stopped[0] == "root@10.77.0.2"
    assert set(stopped) == {f"root@{address}" for address in ("10.77.0.2", *WORKERS)}
    assert hosts.record.read().cluster is not None, "the next `--down` goes on"
    (reached.parent / "bin" / "ssh").write_text("#!/bin/sh\n")
    hosts.down(hosts.record.read())
    assert hosts.record.read() == Applied()


def test_down_leaves_the_instance_of_a_group_and_ends_its_head_first(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance that it ended would be replaced, and the next one would start the cell again."""
    kept = {"head_group": "heads", "key_name": "mine", "ssh_key": "~/.ssh/mine", "secrets": {"kind": "file"}}
    spec = spec_of(changed(AWS, **kept))
    region = spec.regions[0]
    assert isinstance(region.deploy, AwsDeploy)
    state = DeployState(spec.cell_name(region))
    run: list[list[str]] = []
    monkeypatch.setattr(steps, "run", lambda command, *_: run.append(command[1:]))
    store, record = SecretsFolder(state.secrets), HeadRecord(["sh", "-c"], "nowhere")
    with state.lock():
        steps.Hosts(spec, region, region.deploy, state, store, record).down(Applied())
    folder = "~/.raylane/team-us-east-1"
    stop = (
        f"test ! -d {folder}/node || sh {folder}/node/stop-head && rm -rf {folder}/secrets {folder}/node {folder}/serve"
    )
    assert run == [["exec", "ray-cluster.yaml", stop], ["down", "-y", "--workers-only", "ray-cluster.yaml"]]


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("/home/a/.raylane/team-here/secrets/ray_token", ""),
        ("/home/a/.raylane/other-here/secrets/ray_token", r"its token: /home/a/\.raylane/other-here/"),
        ("", "its token: unknown"),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it looks at processes of its own alone")
def test_a_host_with_another_ray_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, refused: str
) -> None:
    monkeypatch.setenv("RAYLANE_HOME", str(tmp_path / "home"))
    (tmp_path / "raylet").mkdir()
    raylet = tmp_path / "raylet" / "raylet"
    raylet.symlink_to(shutil.which("sleep") or "sleep")
    given = f"RAY_AUTH_TOKEN_PATH={path}" if path else "A=b"
    inside = f'case "$0" in *10.77.0.4*) env -i {given} {raylet} 60 & sleep 0.3 ;; esac; eval "$1"'
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/bash\n"
        "exec unshare --pid --fork --kill-child --mount-proc "
        f'bash -c {shlex.quote(inside)} "${{@: -2:1}}" "${{@: -1}}"\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    spec = SPECS["first"]
    region = spec.regions[0]
    assert isinstance(region.deploy, LocalDeploy)
    hosts = hosts_of(spec)
    if not refused:
        hosts._check_hosts(region.deploy)
        return
    with pytest.raises(DeployError, match=rf"host 10\.77\.0\.4: another Ray runs there \({refused}"):
        hosts._check_hosts(region.deploy)


def test_what_the_launcher_prints_is_in_a_file_and_its_end_in_the_error(tmp_path: Path) -> None:
    log = tmp_path / "up.log"
    programs.run(["sh", "-c", "echo good; echo $RAY_USAGE_STATS_ENABLED >&2"], tmp_path, log)
    assert log.read_text() == "good\n0\n"
    with pytest.raises(DeployError, match=rf"sh -c ended with status 3; the end of {log}:\n  no key"):
        programs.run(["sh", "-c", "echo no key >&2; exit 3"], tmp_path, log)
    with pytest.raises(DeployError, match="no-such-tool: cannot be run"):
        programs.run(["no-such-tool"], tmp_path, log)
