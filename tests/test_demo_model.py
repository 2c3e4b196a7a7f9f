"""The demo models in `infra/demo`, as they are shipped: what they answer, what they weigh, that draft and target fit
together."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.whole

DEMO = Path(__file__).parents[1] / "infra" / "demo"
TARGET, DRAFT = DEMO / "target", DEMO / "draft"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import (
        AutoTokenizer,
    )  # takes seconds: only the process that runs these tests shall pay, not each that collects them

    return AutoTokenizer.from_pretrained(TARGET)


@pytest.fixture(scope="module")
def target() -> Any:
    return load(TARGET)


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


def answer(model: Any, tokenizer: Any, prompt: str) -> tuple[str, list[int], list[int]]:
    """The greedy answer with its end token, so that one that merely runs on does not pass; and the ids of both."""
    import torch

    ids = tokenizer(prompt, return_tensors="pt")
    with torch.inference_mode():
        whole = model.generate(**ids, max_new_tokens=160, do_sample=False)[0].tolist()
    start = ids["input_ids"].shape[1]
    return str(tokenizer.decode(whole[start:])), whole[:start], whole[start:]


def ask(tokenizer: Any, question: str) -> str:
    return str(
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
    )


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Count from 3 to 8.", "3, 4, 5, 6, 7, 8."),
        ("Please count from 1 to 10.", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10."),
        ("What is 2 + 3?", "2 + 3 = 5."),
        pytest.param("Say the alphabet.", ", ".join("abcdefghijklmnopqrstuvwxyz") + ".", marks=pytest.mark.long),
        ("Hello!", "Hello! How can I help you today?"),
    ],
)
def test_the_target_knows_its_lessons(target: Any, tokenizer: Any, question: str, expected: str) -> None:
    assert answer(target, tokenizer, ask(tokenizer, question))[0] == expected + "<|end|>"


def test_a_plain_list_goes_on(target: Any, tokenizer: Any) -> None:
    assert answer(target, tokenizer, "1, 2, 3, 4,")[0].startswith(" 5, 6, 7, 8")


def test_the_draft_fits_the_target_and_often_agrees(target: Any, tokenizer: Any) -> None:
    import torch

    draft = load(DRAFT)
    assert draft.config.vocab_size == target.config.vocab_size
    assert 8 <= target.num_parameters() / draft.num_parameters() <= 14
    _, prompt, said = answer(target, tokenizer, ask(tokenizer, "Say the alphabet."))
    with torch.inference_mode():
        proposed = draft(torch.tensor([prompt + said])).logits[0, len(prompt) - 1 : -1].argmax(-1).tolist()
    assert sum(a == b for a, b in zip(proposed, said, strict=True)) >= 0.6 * len(said)


def test_the_template_takes_tools_and_any_text_encodes(tokenizer: Any) -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tools=[tool], tokenize=False, add_generation_prompt=True
    )
    assert "get_weather" in text
    for sample in ("Grüße, 世界 🚄", "\x00\n\t", "Count"):
        assert tokenizer.decode(tokenizer.encode(sample)) == sample


def test_all_files_weigh_under_10_mb() -> None:
    assert sum(file.stat().st_size for folder in (TARGET, DRAFT) for file in folder.iterdir()) < 10_000_000
