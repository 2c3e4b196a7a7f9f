"""What two prompts must have in common beside their meaning as a vector sees it: numbers, names and negations. Vectors
of sentences hardly differ by these, and answers do (docs/caching.md has figures)."""

import re

_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?|\d+(?:[.,:/]\d+)*")
_APOSTROPHE = "\N{RIGHT SINGLE QUOTATION MARK}"


def _words(text: str) -> list[str]:
    return text.split()


_COUNTS = {
    word: str(number)
    for number, word in enumerate(
        _words(
            "zero - two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
            "seventeen eighteen nineteen twenty"
        )
    )
} | {"thirty": "30", "forty": "40", "fifty": "50", "hundred": "100", "thousand": "1000", "million": "1000000"}
"""Without `one`, which is a pronoun more often."""
_NEGATIONS = frozenset(
    _words(
        "not no never none nobody nothing neither nor without cannot except unless hardly dont doesnt isnt cant wont"
    )
)
_NO_NAMES = frozenset(
    _words(
        "a an the i you he she it we they my your his her its our their me this that these those there here what which "
        "who whom whose when where why how is are am was were be been do does did has have had can could will would "
        "shall should may might must if in on at of for from to with by as and or but so please give tell explain "
        "describe write list show make find name compare summarize summarise translate help after before since while "
        "during i'm i've i'd i'll it's what's how's who's where's any some all one also"
    )
)
"""Words that begin with a capital where they begin a sentence, or are `I`: whatever else has one may be a name."""


def marks_of(text: str) -> frozenset[str]:
    """Its numbers and names, and whether it denies: texts whose marks are equal may mean the same."""
    found = set()
    for word in _WORD.findall(text.replace(_APOSTROPHE, "'")):
        low = word.lower()
        if word[0].isdigit():
            found.add(word)
        elif low in _COUNTS:
            found.add(_COUNTS[low])
        elif low in _NEGATIONS or low.endswith("n't"):
            found.add("not")
        elif low != word and low not in _NO_NAMES:
            found.add(low.removesuffix("'s"))
    return frozenset(found)
