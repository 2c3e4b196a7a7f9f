"""One word for one thing: options, spec keys and documents use the terms of `docs/glossary.md`, and none of the words
that it replaces."""

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from cli.main import app
from cluster.spec import ClusterSpec
from tests.source import ROOT, source_of

PRODUCT = ("autoscaling", "benchmarks", "cli", "cluster", "deployments", "planning")
GLOSSARY = ROOT / "docs" / "glossary.md"
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
ALLOWED_LINES = ("Little's law", "conservation law")


def banned(*, names: bool) -> set[str]:
    """The words of the glossary's last column."""
    rows = [line.split("|")[-2] for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")][1:]
    words = [word.strip() for row in rows for word in row.split(",") if word.strip()]
    return {word.removesuffix("*") for word in words if names or not word.endswith("*")}


def files(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return [ROOT / one for one in listed if (ROOT / one).is_file()]


def words_of(name: str) -> set[str]:
    return {name, *(word.lower() for word in WORD.findall(name))}


def options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from (option.strip("-").replace("-", "_") for option in parameter.opts)
    for name, inner in getattr(command, "commands", {}).items():
        yield name.replace("-", "_")
        yield from options(inner)


def keys(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for value in schema.values():
            yield from keys(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from keys(value)


def product_files() -> list[Path]:
    return files(*(f"{room}/**.py" for room in PRODUCT))


def test_the_glossary_has_its_words() -> None:
    assert {"law", "desk", "play"} <= banned(names=False)
    assert {"most", "told", "law"} <= banned(names=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray Serve's, which `raylane deploy` imports
def test_no_option_and_no_spec_key_has_a_replaced_word() -> None:
    wrong = banned(names=True)
    names = {*options(typer.main.get_command(app)), *keys(ClusterSpec.model_json_schema())}
    assert {name for name in names if words_of(name) & wrong} == {"at_most"}, "the ladder's: no quantity's maximum"


@pytest.mark.parametrize("path", files("README.md", "docs/*.md", "docs/decisions/*.md"), ids=lambda path: path.name)
def test_no_document_has_a_replaced_word(path: Path) -> None:
    if path == GLOSSARY:
        return
    wrong = banned(names=False)
    lines = [line for line in path.read_text().splitlines() if not any(allowed in line for allowed in ALLOWED_LINES)]
    assert [line for line in lines if set(re.findall(r"[a-z_]+", line.lower())) & wrong] == []


@pytest.mark.whole
def test_no_public_class_name_stands_in_two_files() -> None:
    where: dict[str, set[str]] = defaultdict(set)
    for path in product_files():
        for name in source_of(path).public_classes:
            where[name].add(str(path.relative_to(ROOT)))
    assert {name: sorted(paths) for name, paths in where.items() if len(paths) > 1} == {}
