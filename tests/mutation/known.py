"""The mutants that are known to survive, with the reason (survivors.toml)."""

import tomllib
from dataclasses import dataclass

from tests.mutation.population import Mutant
from tests.mutation.tree import ROOT

FILE = ROOT / "tests" / "mutation" / "survivors.toml"
EQUIVALENT = "equivalent"
ACCEPTED = "accepted"


@dataclass(frozen=True)
class Survivor:
    """One entry. `equivalent`: no input tells it from the original; else it is accepted, and counts as survived."""

    identity: tuple[str, str, str, str]
    equivalent: bool
    why: str


@dataclass(frozen=True)
class Known:
    """The list."""

    survivors: dict[tuple[str, str, str, str], Survivor]

    def is_equivalent(self, mutant: Mutant) -> bool:
        """Whether the list says that nothing can tell it from the original."""
        found = self.survivors.get(mutant.identity)
        return found is not None and found.equivalent

    def why(self, mutant: Mutant) -> str:
        """The reason given, or that there is none."""
        found = self.survivors.get(mutant.identity)
        return "not listed" if found is None else f"{EQUIVALENT if found.equivalent else ACCEPTED}: {found.why}"

    def without_mutant(self, population: list[Mutant]) -> list[str]:
        """Complaints: entries whose code is gone."""
        there = {mutant.identity for mutant in population}
        return [
            f"no such mutant (did its code change?): {' | '.join(identity)}"
            for identity in self.survivors
            if identity not in there
        ]

    def but_dead(self, drawn: list[Mutant], fates: dict[str, str]) -> list[str]:
        """Complaints: entries that the tests kill."""
        return [
            f"listed, but killed: {mutant}"
            for mutant in drawn
            if mutant.identity in self.survivors and fates[mutant.name] == "killed"
        ]


def read_known() -> Known:
    """Reads the list. KeyError or ValueError where an entry is not complete."""
    survivors: dict[tuple[str, str, str, str], Survivor] = {}
    for entry in tomllib.loads(FILE.read_text())["survivor"]:
        identity = (entry["file"], entry["function"], entry["was"], entry["now"])
        if entry["kind"] not in (EQUIVALENT, ACCEPTED):
            raise ValueError(f"{FILE.name}: kind is {entry['kind']!r}, allowed are {EQUIVALENT!r} and {ACCEPTED!r}")
        if identity in survivors:
            raise ValueError(f"{FILE.name}: listed twice: {' | '.join(identity)}")
        survivors[identity] = Survivor(identity, entry["kind"] == EQUIVALENT, entry["why"])
    return Known(survivors)
