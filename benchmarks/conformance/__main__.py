"""Runs vLLM's own tests of its OpenAI server against vLLM and against raylane, and says which of those that pass on
vLLM fail here.

The tests come from vLLM's source distribution, which pip downloads (`source.py`). One thing is replaced: the class that
starts the server for a fixture (`stand_in.py`). It takes the flags that the fixture gave it, for both sides alike
(`served.py`).
"""

import asyncio
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from benchmarks.conformance.source import VERSION, SourceError, fetch, install_what_tests_need, make_adapter, make_model
from benchmarks.harness import ROOT, JsonFile, console, run_facts, run_program, write_json

MODULES = (
    "entrypoints/openai/chat_completion/test_batched_chat_completions.py",
    "entrypoints/openai/chat_completion/test_chat_completion.py",
    "entrypoints/openai/chat_completion/test_chat_logit_bias_validation.py",
    "entrypoints/openai/chat_completion/test_logprob_token_ids.py",
    "entrypoints/openai/test_return_token_ids.py",
    "entrypoints/openai/chat_completion/test_chat.py",
    "entrypoints/openai/completion/test_completion.py",
    "entrypoints/openai/chat_completion/test_chat_echo.py",
    "entrypoints/openai/chat_completion/test_root_path.py",
    "entrypoints/openai/chat_completion/test_completion_with_function_calling.py",
    "entrypoints/openai/chat_completion/test_include_reasoning.py",
    "entrypoints/openai/chat_completion/test_enable_force_include_usage.py",
    "entrypoints/openai/models/test_models.py",
    "entrypoints/openai/test_return_tokens_as_ids.py",
    "entrypoints/openai/test_chunked_prompt.py",
    "entrypoints/serve/instrumentator/test_basic.py",
    "entrypoints/anthropic/test_messages.py",
    "entrypoints/openai/responses/test_basic.py",
    "entrypoints/openai/responses/test_simple.py",
    "entrypoints/serve/tokenize/test_tokenization.py",
    "entrypoints/openai/completion/test_prompt_validation.py",
)
"""The modules of tests that ask a server, and that a small model can be asked: no pictures, no sound, no GPU. Those
that share a server follow each other."""
SIDES = ("bare", "raylane")
_AGAIN = 2
"""Repetitions, on both sides, of tests that pass on one side only: some depend on chance."""


def main(
    modules: Annotated[str, typer.Option(help="Only modules with this in their path; several with commas.")] = "",
    sides: Annotated[str, typer.Option(help="`bare`, `raylane` or both, separated by a comma.")] = ",".join(SIDES),
    keep: Annotated[
        Path | None,
        typer.Option(help="A folder that keeps the downloads for the next run; by default they are deleted."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Compare vLLM and raylane by vLLM's own tests."""
    chosen = [module for module in MODULES if any(part in module for part in modules.split(","))]

    async def work(folder: Path) -> dict[str, Any]:
        try:
            return await asyncio.to_thread(compare, folder, keep or folder, chosen, sides.split(","))
        except SourceError as error:
            console.print(f"error: {error}", style="red", markup=False)
            raise typer.Exit(1) from error

    result = run_program(work)
    write_json(result, json_file)
    show(result)


def compare(folder: Path, downloads: Path, modules: list[str], sides: list[str]) -> dict[str, Any]:
    """What became of each test, by side. Raises SourceError."""
    downloads.mkdir(parents=True, exist_ok=True)
    source, packages = fetch(downloads.resolve()), install_what_tests_need(downloads.resolve())
    if not (source.parent / "adapter").exists():
        make_model(
            source.parent / "model",
            (file.read_text(encoding="utf-8") for file in sorted((source / "tests/entrypoints").rglob("*.py"))),
        )
        make_adapter(source.parent / "adapter")
    outcomes = {
        side: run(side, folder / side, source, packages, [str(source / "tests" / module) for module in modules])
        for side in sides
    }
    for turn in range(1, _AGAIN + 1):
        nodes = differing(*outcomes.values()) if len(sides) > 1 else []
        for side in sides if nodes else ():
            asked = [f"{source}/{node}" for node in nodes]
            found = run(side, folder / f"{side}-{turn}", source, packages, asked, seed=turn)
            outcomes[side] |= {
                name: {**test, "turn": turn} for name, test in found.items() if test["outcome"] == "passed"
            }
    return {"schema": 1, **run_facts(), "vllm": VERSION, "modules": modules, "outcomes": outcomes}


def differing(one: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> list[str]:
    """The tests that pass on one side alone, as pytest is asked for them."""
    return [
        test["node"]
        for name, test in one.items()
        if name in other and (test["outcome"] == "passed") != (other[name]["outcome"] == "passed")
    ]


def run(
    side: str, folder: Path, source: Path, packages: Path, asked: list[str], seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Runs tests against one side, whose engine draws by `seed`. Returns each one's outcome and, where it failed, the
    message."""
    (folder / "names").mkdir(parents=True)
    report = folder / "report.xml"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (source, packages, ROOT))),
        "CONFORMANCE_SIDE": side,
        "CONFORMANCE_FOLDER": str(folder),
        "CONFORMANCE_MODEL": str(source.parent / "model"),
        "CONFORMANCE_ADAPTER": str(source.parent / "adapter"),
        "CONFORMANCE_SEED": str(seed),
        "HF_HUB_OFFLINE": "1",
    }
    options = ["-q", "-p", "benchmarks.conformance.stand_in", "-p", "no:cacheprovider", "-c", os.devnull, "--tb=short"]
    options += ["-o", "asyncio_mode=strict", "-o", "junit_family=xunit1", "--timeout=300"]
    options += [f"--rootdir={source}", f"--junitxml={report}"]
    console.print(f"{side}: {len(asked)} modules or tests ...", style="dim")
    with (folder / "pytest.log").open("wb") as log:
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, *asked],
            cwd=folder / "names",
            env=environment,
            stdout=log,
            stderr=log,
            check=False,
        )
    if not report.exists():
        raise SourceError(
            f"pytest gave no report for {side}:\n{(folder / 'pytest.log').read_text(errors='replace')[-3_000:]}"
        )
    return outcomes_in(report)


def outcomes_in(report: Path) -> dict[str, dict[str, Any]]:
    """Each test in a JUnit report: how pytest is asked for it, its outcome, and its message."""
    found: dict[str, dict[str, Any]] = {}
    for case in ET.parse(report).iter("testcase"):
        module, _, test = (case.get("classname") or "").rpartition(".test_")
        file, _, group = test.partition(".")
        node = "::".join(
            part for part in (f"{module.replace('.', '/')}/test_{file}.py", group, case.get("name")) if part
        )
        bad = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        outcome = (
            {"outcome": "passed"}
            if bad is None
            else {"outcome": bad.tag, "message": f"{bad.get('message')}\n{bad.text or ''}"[-1_500:]}
        )
        found[f"{case.get('classname')}::{case.get('name')}"] = {"node": node, **outcome}
    return found


def show(result: dict[str, Any]) -> None:
    """Counts, and every test that passes on one side alone."""
    outcomes = result["outcomes"]
    counts = Table("side", "tests", "passed", "failed", "not begun", "skipped")
    for side, tests in outcomes.items():
        reported = [test["outcome"] for test in tests.values()]
        counts.add_row(
            side, str(len(reported)), *(str(reported.count(one)) for one in ("passed", "failure", "error", "skipped"))
        )
    console.print(counts)
    if set(SIDES) <= set(outcomes):
        bare, own = ({name for name, test in outcomes[side].items() if test["outcome"] == "passed"} for side in SIDES)
        console.print(f"{len(bare)} pass on vLLM; {len(bare & own)} of them pass here")
        for name in sorted(bare - own):
            console.print(
                f"only on vLLM: {name}\n{outcomes['raylane'].get(name, {}).get('message', 'not run')}", markup=False
            )
        for name in sorted(own - bare):
            console.print(f"only here: {name}", markup=False)


if __name__ == "__main__":
    typer.run(main)
