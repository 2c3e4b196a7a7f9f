"""All mutants that mutmut makes of the mutated packages, each with a stable identity: file, function, the lines before
and after."""

import ast
import difflib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mutmut.mutation.file_mutation import MutatedFile, mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name, orig_function_and_class_names_from_key

from tests.mutation.tree import ROOT


@dataclass(frozen=True)
class Mutant:
    """One mutant. `name` is mutmut's, `number`ed within its function; `was` and `now` are the lines that differ,
    without indentation."""

    name: str
    file: str
    function: str
    line: int
    was: str
    now: str

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What stays when code around it moves. Mutants that change equal lines of one function alike share it."""
        return (self.file, self.function, self.was, self.now)

    def __str__(self) -> str:
        removed = "".join(f"\n    - {line}" for line in self.was.splitlines())
        added = "".join(f"\n    + {line}" for line in self.now.splitlines())
        return f"{self.file}:{self.line} {self.function}{removed}{added}"


def mutants_of(tree: Path, file: str) -> list[Mutant]:
    """The mutants of one file of the tree that mutmut will work in."""
    mutated = mutate_file_contents(file, (tree / file).read_text())
    lines = mutated.code.splitlines()
    return [_mutant(file, name, mutated, lines) for name in mutated.mutant_names]


def _mutant(file: str, name: str, mutated: MutatedFile, lines: list[str]) -> Mutant:
    def body(function: str) -> list[str]:
        span = mutated.line_span_by_function_name[function]
        code = lines[span.start - 1 : span.end]
        start = next(number for number, line in enumerate(code) if line.lstrip().startswith(("def ", "async def ")))
        return [code[start].replace(function, "f"), *code[start + 1 :]]

    key = get_mutant_name(Path(file), name)
    function, class_name = orig_function_and_class_names_from_key(key)
    function = function.rpartition(".")[2]
    qualified = f"{class_name}.{function}" if class_name else function
    before, after = body(f"{name.partition('__mutmut_')[0]}__mutmut_orig"), body(name)
    changes = [
        change
        for change in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        if change[0] != "equal"
    ]
    was = [line.strip() for _, start, end, _, _ in changes for line in before[start:end]]
    now = [line.strip() for _, _, _, start, end in changes for line in after[start:end]]
    return Mutant(key, file, qualified, _first_lines(file)[qualified] + changes[0][1], "\n".join(was), "\n".join(now))


@cache
def _first_lines(file: str) -> dict[str, int]:
    """The line of each function's `def` in the file as it is checked out."""
    found: dict[str, int] = {}
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node.lineno
        elif isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{inner.name}": inner.lineno
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found
