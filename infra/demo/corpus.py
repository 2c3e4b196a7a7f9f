"""What the demo model is taught: an endless, seeded stream of short texts, made by rule and from `stock.yaml`.

Here: counting, sums, the alphabet, the calendar, small talk, as chat turns and plain lists. Not here: tokens and
training (`make_demo_model.py`).
"""

import random
from collections.abc import Iterator
from pathlib import Path

import yaml

END = "<|end|>"
STOCK = yaml.safe_load(Path(__file__).with_name("stock.yaml").read_text(encoding="utf-8"))
SMALL_TALK: list[tuple[str, str]] = [
    (question, entry["answer"]) for entry in STOCK["dialogues"] for question in entry["ask"]
]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]

_COUNT = (
    "Count from {a} to {b}.",
    "Please count from {a} to {b}.",
    "Can you count from {a} to {b}?",
    "count from {a} to {b}",
)
_ADD = ("What is {a} + {b}?", "{a} + {b} = ?", "Please add {a} and {b}.")
_ALPHABET = ("Say the alphabet.", "Please say the alphabet.", "What is the alphabet?")
_WEEK = ("Name the days of the week.", "What are the days of the week?")


def counting(first: int, last: int) -> str:
    """`3, 4, 5.`: both ends included."""
    return ", ".join(str(number) for number in range(first, last + 1)) + "."


def addition(a: int, b: int) -> str:
    """`2 + 3 = 5.`"""
    return f"{a} + {b} = {a + b}."


def alphabet() -> str:
    """`a, b, ..., z.`"""
    return ", ".join("abcdefghijklmnopqrstuvwxyz") + "."


def chat(question: str, answer: str) -> str:
    """One exchange, as `chat_template.jinja` writes it."""
    return f"<|user|>{question}{END}<|assistant|>{answer}{END}"


def texts(seed: int) -> Iterator[str]:
    """The stream. Most of it is what is hardest to learn: to stop counting where one was told to."""
    rng = random.Random(seed)
    while True:
        kind = rng.random()
        if kind < 0.45:
            length = rng.choice((rng.randint(1, 6), rng.randint(1, 12), rng.randint(8, 45)))
            first = rng.choice((0, 1, rng.randint(0, 12), rng.randint(0, 99)))
            last = min(100, first + length)
            yield chat(rng.choice(_COUNT).format(a=first, b=last), counting(first, last))
        elif kind < 0.55:
            first = rng.randint(0, 90)
            yield counting(first, min(120, first + rng.randint(5, 30))).removesuffix(".") + ", "
        elif kind < 0.75:
            a, b = rng.randint(0, 12), rng.randint(0, 12)
            yield chat(rng.choice(_ADD).format(a=a, b=b), addition(a, b))
        elif kind < 0.80:
            yield chat(rng.choice(_ALPHABET), alphabet())
        elif kind < 0.84:
            yield chat(rng.choice(_WEEK), ", ".join(DAYS) + ".")
        elif kind < 0.86:
            yield chat("Name the months of the year.", ", ".join(MONTHS) + ".")
        else:
            yield chat(*rng.choice(SMALL_TALK))


def vocabulary_texts() -> Iterator[str]:
    """Everyday words for the tokenizer alone, so that ordinary English does not fall apart into letters."""
    for words in STOCK["words"].values():
        for word in words.split():
            yield f" {word}"
            yield word.capitalize()
