"""Bills of materials name all that the images install; an audit that could look nothing up does not pass."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http_server import Handler, listening
from tests.infra.conftest import ROOT, tools_of
from tests.infra.test_images import KINDS, dockerfile, versions

VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
sys.exit(str(problem) if problem else 0)
"""


@pytest.fixture(scope="module")
def tools() -> Path:
    return tools_of("bom")


@pytest.mark.long
def test_hadolint_finds_nothing(tools: Path) -> None:
    done = subprocess.run([tools / "hadolint", *map(dockerfile, KINDS)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.long
def test_each_image_has_a_valid_bill_that_names_all_of_it(tools: Path) -> None:
    done = subprocess.run([ROOT / "infra" / "sbom.sh"], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in KINDS:
        text = (ROOT / "dist" / f"raylane-{kind}.cdx.json").read_text(encoding="utf-8")
        bill = json.loads(text)
        assert {one["name"]: one["version"] for one in bill["components"]} == versions(f"image-{kind}.lock")
        assert bill["metadata"]["component"]["name"] == "raylane"
        for broken in (text, text.replace('"bomFormat"', '"bomFromat"')):
            told = subprocess.run([tools / "python", "-c", VALIDATE], input=broken, capture_output=True, text=True)
            assert (told.returncode == 0) == (broken is text), told.stderr


class Advisories(Handler):
    """Answers as an OSV server does: one package has a vulnerability, the others have none."""

    def do_POST(self) -> None:
        asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = asked["package"]["name"]
        entry = {"id": "PYSEC-0000-1", "aliases": ["CVE-0000-0001"], "summary": "an example"}
        entry["affected"] = [{"package": {"name": name, "ecosystem": "PyPI"}, "ranges": []}]
        answer = {"vulns": [entry]} if name == "vllm" else {}
        self.answer(200, json.dumps(answer).encode())


@pytest.fixture
def osv_url() -> Iterator[str]:
    with listening(Advisories) as url:
        yield f"{url}/v1/query"


def audit(tools: Path, lock: Path, url: str) -> subprocess.CompletedProcess[str]:
    command = [tools / "python", ROOT / "infra" / "audit.py", "--osv-url", url, lock]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.long
def test_the_audit_tells_vulnerable_from_clean_from_not_looked_up(tools: Path, osv_url: str, tmp_path: Path) -> None:
    found = audit(tools, ROOT / "requirements" / "image-cpu.lock", osv_url)
    assert found.returncode == 1
    assert "vllm 0.32.0: PYSEC-0000-1 (CVE-0000-0001)" in found.stdout
    assert f"{len(versions('image-cpu.lock'))} packages looked up, 1 of them vulnerable" in found.stdout
    entry = "ray==2.60.0 --hash=sha256:" + "0" * 64
    (tmp_path / "clean.lock").write_text(f"{entry}\n")
    clean = audit(tools, tmp_path / "clean.lock", osv_url)
    assert (clean.returncode, clean.stderr) == (0, "")
    unreachable = audit(tools, tmp_path / "clean.lock", "http://127.0.0.1:9/v1/query")
    assert unreachable.returncode == 3
    assert "NOT AUDITED, no source of advisories answered" in unreachable.stderr
