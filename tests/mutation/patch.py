"""A mutant made by hand: one piece of text of one file, replaced.

The text must stand in its file exactly once: where the code has moved, the patch is written anew, never dropped.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.mutation.tree import ROOT

Faults = dict[str, tuple[tuple[str, str, str], ...]]
"""By file: what the mutant does wrong, the text as it is, the text as it becomes."""


@dataclass(frozen=True)
class Patch:
    """`fault` says what the mutant does wrong."""

    fault: str
    file: str
    was: str
    now: str

    @property
    def tests(self) -> str:
        """The tests that must kill it: those of its package."""
        return f"tests/{self.file.rpartition('/')[0]}"

    def applied(self) -> str:
        """The mutated file. ValueError where the text does not stand in it exactly once, or where the result is no
        Python."""
        code = (ROOT / self.file).read_text()
        if (count := code.count(self.was)) != 1:
            raise ValueError(
                f"{self.fault!r}: {self.file} holds {self.was!r} {count} times, must be once: write the patch anew"
            )
        mutated = code.replace(self.was, self.now)
        compile(mutated, self.file, "exec")
        return mutated

    def apply(self, tree: Path) -> None:
        """Writes the mutated file into a copy of the tree."""
        (tree / self.file).write_text(self.applied())


def patches_of(faults: Faults) -> list[Patch]:
    return [Patch(fault, file, was, now) for file, patches in faults.items() for fault, was, now in patches]
