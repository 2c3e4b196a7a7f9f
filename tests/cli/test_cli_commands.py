"""The commands as a user types them: what they print, and what they refuse before anything starts."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from cli import boot, doctor
from cli.main import COMMANDS
from cli.run_dir import RunDir, State
from cluster.files import shipped
from deployments.wire import to_plain
from tests.cell_store import keep_gateways
from tests.cli.test_cli_run_dir import written
from tests.cli.test_narrow import report
from tests.commands import ran
from tests.http_server import listening, saying

SPEC = """
name: x
regions: [{name: r, pools: [{name: p}]}]
models: [{name: m, source: org/hub-name, settings: {max_model_len: 100}}]
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYLANE_HOME", str(tmp_path / "home"))
    imports = doctor.Finding("imports", doctor.FindingLevel.GOOD, "not tried here")
    monkeypatch.setattr(doctor, "_imports", lambda: imports)
    return tmp_path / "home"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)
    return file


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_spec_check(spec: Path) -> None:
    result = ran("spec", "check", spec)
    assert "m: 1 x cpu in r/p" in result.stdout
    assert "is a usable spec" in result.stdout


def test_spec_check_prints_the_schedule(spec: Path) -> None:
    schedule = "{time_zone: Europe/Berlin, entries: [{name: office, days: [mon, tue, wed], begin: 8:00, min: 2}]}"
    text = SPEC.replace("max_model_len: 100}", f"max_model_len: 100}}, replicas: {{max: 4, schedule: {schedule}}}")
    spec.write_text(text + "autoscaling: {policy: backlog}\n")
    result = ran("spec", "check", spec)
    assert "m: replicas by schedule, Europe/Berlin: office: mon-wed 8:00-24:00, min 2" in result.stdout


def test_spec_check_of_what_ships() -> None:
    for path in shipped("specs").glob("*.yaml"):
        ran("spec", "check", path)


def test_spec_check_names_each_problem(spec: Path) -> None:
    spec.write_text(SPEC + "gateway: {port: 0, nonsense: 1}\n")
    result = ran("spec", "check", spec, code=1)
    assert "2 problem(s)" in result.stderr
    assert "gateway.port = 0: allowed: a whole number, 1 to 65535" in result.stderr
    assert "gateway.nonsense = 1: unknown key" in result.stderr


def test_spec_check_refuses_a_policy_that_there_is_not_and_notes_a_cost_file_that_is_not_here(spec: Path) -> None:
    spec.write_text(SPEC.replace("100}}", "100}, replicas: {count: 1, max: 2}}") + "autoscaling: {policy: nope}\n")
    result = ran("spec", "check", spec, code=1)
    assert "is a usable spec" not in result.stdout
    assert "policy 'nope': no such policy" in result.stderr
    spec.write_text(SPEC + "autoscaling: {costs: nowhere.json}\n")
    result = ran("spec", "check", spec)
    assert "is a usable spec" in result.stdout
    assert "cannot be scaled as written" in result.stderr


MISSING = [
    (SPEC.replace("org/hub-name", "/no/model"), "/no/model"),
    (
        SPEC.replace(
            "max_model_len: 100}", "max_model_len: 100, speculative: {method: draft_model, model: /no/draft}}"
        ),
        "/no/draft",
    ),
    (SPEC.replace("100}}", "100}, adapters: [{name: a, source: /no/adapter}]}"), "/no/adapter"),
]


@pytest.mark.parametrize(("text", "path"), MISSING)
def test_missing_files(spec: Path, text: str, path: str) -> None:
    """They do not spoil the spec, which another machine may run; but this one cannot."""
    spec.write_text(text)
    assert f"not on this machine: source '{path}': {path} holds no" in ran("spec", "check", spec).stderr
    assert f"{path} holds no" in ran("up", spec, code=2).stderr
    assert f"{path} holds no" in ran("doctor", spec, code=1).stdout
    # On other machines, it is they who need them.
    assert "Ray at 127.0.0.1:1 does not answer" in ran("up", spec, "--address", "127.0.0.1:1", code=1).stderr


def test_spec_schema() -> None:
    schema = json.loads(ran("spec", "schema").stdout)
    assert schema["additionalProperties"] is False
    assert "gateway" in schema["properties"]


def test_up_refuses_a_bad_spec(spec: Path) -> None:
    spec.write_text("name: [")
    result = ran("up", spec, code=2)
    assert "is not a usable spec" in result.stderr
    assert f"raylane spec check {spec}" in result.stderr
    ran("up", spec.parent / "none.yaml", code=2)


def test_up_refuses_a_taken_port(spec: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = ran("up", spec, "--port", taken.getsockname()[1], code=1)
    assert "cannot listen: Address already in use" in result.stderr


def test_up_refuses_a_second_one(spec: Path) -> None:
    state = State("x", os.getpid(), psutil.Process().create_time(), "http://127.0.0.1:9", "/tmp/none", ready=True)
    run_dir = written(state)
    assert "is already up at http://127.0.0.1:9" in ran("up", spec, "--port", free_port(), code=1).stderr
    assert run_dir.state() is not None


def test_up_in_the_background_waits_for_as_long_as_a_model_may_start(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec.write_text(SPEC.replace("settings:", "health: {startup_s: 60}, settings:"))
    ends = tmp_path / "python"
    ends.write_text("#!/bin/sh\nsleep 1\n")
    ends.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(ends))
    monkeypatch.setattr("cli.up._DETACH_PATIENCE_S", 0.1)
    assert "the cluster ended while it started" in ran("up", spec, "--port", free_port(), "--detach", code=1).stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--address", "head"], "--address 'head': allowed: host:port of Ray's head"),
        (["--address", ":6379"], "--address ':6379': allowed: host:port of Ray's head"),
        (["--address", "h:1", "--token-file", "/none/token"], "--token-file /none/token: no such file"),
        (["--address", "h:1", "--secret-file", "/none/secret"], "--secret-file /none/secret: No such file"),
        (["--secret-file", "/none/secret"], "--secret-file: allowed only with --address"),
        (["--address", "127.0.0.1:1", "--detach"], "--detach: allowed only without --address, which returns by itself"),
    ],
)
def test_up_on_a_ray_cluster_refuses_what_it_cannot_use(spec: Path, options: list[str], problem: str) -> None:
    assert problem in ran("up", spec, *options, code=2).stderr.replace("\n", " ")


def test_up_on_a_ray_cluster_that_does_not_answer(spec: Path, tmp_path: Path) -> None:
    secret = tmp_path / "own_secret"
    secret.write_text("x" * 31)
    result = ran("up", spec, "--address", "127.0.0.1:1", "--secret-file", secret, code=2)
    assert "31 characters; allowed: at least 32" in result.stderr
    secret.write_text("x" * 32 + "\n")
    result = ran("up", spec, "--address", "127.0.0.1:1", "--secret-file", secret, code=1)
    assert "Ray at 127.0.0.1:1 does not answer" in result.stderr
    assert (RunDir("x").path / "secret").read_text() == "x" * 32
    assert RunDir("x").state() is None
    ran("up", spec, "--address", "127.0.0.1:1", code=1)
    assert (RunDir("x").path / "secret").read_text() == "x" * 32, "the next one keeps it"


@pytest.mark.parametrize("content", [b"\xff\xfe" * 20, b"a\nb" * 20, "\N{LLAMA}".encode() * 40])
def test_a_secret_that_is_none_is_refused_and_not_shown(
    spec: Path, tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "own_secret"
    given.write_bytes(content)
    result = ran("up", spec, "--address", "127.0.0.1:1", "--secret-file", given, code=2)
    assert (
        result.stderr == f"error: --secret-file {given}: is no secret of a cell; allowed: printable ASCII characters\n"
    )

    run_dir = written(State("x", 0, 0.0, "", "", ready=True, address="127.0.0.1:1"))
    keep_gateways(run_dir.path, {"g": "http://127.0.0.1:1"})
    (run_dir.path / "secret").write_bytes(content)
    result = ran("hold", "m", 1, "--for", "1h", code=2)
    assert result.stderr.startswith(f"error: {run_dir.path / 'secret'}: is no secret of a cell; allowed: ")

    monkeypatch.setenv("RAYLANE_SECRET", content.decode("utf-8", "surrogateescape"))
    result = ran("hold", "m", 1, "--for", "1h", "--url", "http://127.0.0.1:2", code=2)
    assert result.stderr == "error: RAYLANE_SECRET: is no secret of a cell; allowed: printable ASCII characters\n"


@pytest.mark.parametrize("file", ["state.json", "cell.sqlite"])
def test_files_of_a_run_directory_that_are_nested_deeply_are_as_none(file: str) -> None:
    run_dir = written(State("x", 0, 0.0, "", "", ready=True, address="127.0.0.1:1"))
    (run_dir.path / file).write_text("[" * 100_000)
    assert "error: no " in ran("status", code=1).stderr


def test_up_refuses_while_another_starts(spec: Path) -> None:
    run_dir = RunDir("x")
    run_dir.create()
    with run_dir.lock():
        result = ran("up", spec, "--port", free_port(), code=1)
    assert "is starting or running" in result.stderr


def test_up_refuses_an_unknown_region_and_wants_one_of_several(spec: Path) -> None:
    assert "'q' is unknown; allowed: r" in ran("up", spec, "--region", "q", code=2).stderr
    spec.write_text(SPEC.replace("{name: p}]}]", "{name: p}]}, {name: s, pools: [{name: p}]}]"))
    assert "--region r | s" in ran("up", spec, code=2).stderr


def test_status_without_a_cluster() -> None:
    assert "raylane up" in ran("status", code=1).stderr
    result = ran("status", "--url", f"http://127.0.0.1:{free_port()}", code=1)
    assert "does not answer as a raylane gateway" in result.stderr


def test_status_of_something_else() -> None:
    with listening(saying(b"hello")) as url:
        ran("status", "--url", url, code=1)


def test_no_proxy_stands_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """A company's HTTP_PROXY knows nothing of this machine's loopback."""
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    with listening(saying(json.dumps(to_plain(replace(report(), models=()))).encode())) as url:
        ran("status", "--url", url, "--json")
        bringing = boot.Boot.__new__(boot.Boot)
        bringing._url = url
        assert bringing._ready("the-secret")


def test_doctor_names_what_is_missing(spec: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        spec.write_text(SPEC + f"gateway: {{port: {taken.getsockname()[1]}}}\n")
        result = ran("doctor", spec)
    assert "gateway port" in result.stdout
    assert "raylane down   (or: raylane up --port ANOTHER)" in result.stdout
    assert "cores" in result.stdout
    spec.write_text("name: [")
    ran("doctor", spec, code=2)


def test_doctor_warns_of_more_cores_than_there_are(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    spec.write_text(SPEC.replace("{max_model_len: 100}", "{max_model_len: 100, cpus: 38}"))
    assert "warn cores: 2; the spec's replicas book 38" in ran("doctor", spec).stdout
    spec.write_text(SPEC.replace("{max_model_len: 100}", "{max_model_len: 100, cpus: 2}"))
    assert "ok   cores: 2; the spec's replicas book 2" in ran("doctor", spec).stdout


def test_doctor_fails_on_what_keeps_it_from_working(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec.write_text(SPEC.replace("{name: p}", "{name: p, accelerator: H100, gpus_per_node: 8}"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert "nvidia-smi is not found" in ran("doctor", spec, code=1).stdout


@pytest.mark.parametrize(
    ("prints", "found"),
    [
        ("echo 'Unable to determine the device handle for GPU0'; exit 9", "BAD  GPUs: Unable to determine"),
        ("exec sleep 60", "BAD  GPUs: no answer in 0.5 s"),
        ("echo H100; echo H100", "ok   GPUs: H100, H100; the spec's replicas book 2"),
        ("echo H100", "warn GPUs: H100; the spec's replicas book 2"),
    ],
)
def test_doctor_sees_gpus_that_do_not_work(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prints: str, found: str
) -> None:
    pool, settings = "{name: p, accelerator: H100, gpus_per_node: 8}", "{max_model_len: 100, tensor_parallel_size: 2}"
    spec.write_text(SPEC.replace("{name: p}", pool).replace("{max_model_len: 100}", settings))
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{prints}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(doctor, "_GPUS_S", 0.5, raising=False)
    assert found in ran("doctor", spec, code=None).stdout


@pytest.mark.whole
def test_the_command_needs_neither_ray_nor_torch_to_start() -> None:
    """`raylane status` in a watch loop must not take seconds: it imports nothing that it does not need."""
    code = """
import sys
from typer.testing import CliRunner
from cli.main import COMMANDS, app
assert CliRunner().invoke(app, ["status", "--url", "http://127.0.0.1:9"]).exit_code == 1
assert "cli.status" in sys.modules
heavy = ("numpy", "scipy", "aiohttp", "prometheus_client", "cluster.spec", "deployments.scheduling", "cli.bench")
print([name for name in heavy if name in sys.modules])
assert CliRunner().invoke(app, ["--help"]).exit_code == 0
assert all(place.partition(":")[0] in sys.modules for place in COMMANDS.values())
print([name for name in ("ray", "torch", "vllm", "transformers") if name in sys.modules])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n[]\n"


@pytest.mark.whole
def test_the_gateway_needs_neither_torch_nor_vllm() -> None:
    code = (
        "import sys, deployments.gateway.deployment; print([name for name in ('torch', 'vllm', 'transformers') if name "
        "in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_help_is_there() -> None:
    result = ran("--help")
    for command in COMMANDS:
        assert f" {command} " in result.stdout
