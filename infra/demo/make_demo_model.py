"""Makes the demo models: `python infra/demo/make_demo_model.py` writes `target/` and `draft/` beside this file.

Here: the tokenizer, the two Llamas, their training and a last examination. Not here: what is taught (`corpus.py`). Run
by hand, and only to change the models: both folders are kept in git, and whatever serves or tests them reads those. It
takes five to seven minutes on two cores.

Seeds and the number of threads are fixed. Another processor or another torch sums floats in another order, so the bytes
may differ there; the answers examined here should not.
"""

import sys
from itertools import chain, islice
from pathlib import Path

import torch
from corpus import END, addition, alphabet, counting, texts, vocabulary_texts
from rich.progress import track
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
CONTEXT = 8_192
VOCABULARY = 4_096
SPECIAL = ("<|pad|>", END, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
ROWS, ROW_TOKENS = 32, 128
PEAK_RATE = 3e-3
TARGET = LlamaConfig(
    hidden_size=256, intermediate_size=640, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4
)
DRAFT = LlamaConfig(
    hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2
)
QUESTIONS = {
    **{
        f"Count from {a} to {b}.": counting(a, b)
        for a, b in ((3, 8), (1, 10), (1, 40), (5, 9), (12, 20), (60, 75), (7, 30))
    },
    **{f"What is {a} + {b}?": addition(a, b) for a in range(10) for b in range(10)},
    "Say the alphabet.": alphabet(),
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE, so that any UTF-8 encodes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, normalized=False) for token in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    plain = (
        text.replace("<|user|>", " ").replace("<|assistant|>", " ").replace(END, " ")
        for text in islice(texts(seed=1), 20_000)
    )
    tokenizer.train_from_iterator(chain(vocabulary_texts(), plain), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=SPECIAL[0],
        chat_template=(HERE / "chat_template.jinja").read_text(encoding="utf-8"),
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def train(config: LlamaConfig, tokenizer: PreTrainedTokenizerFast, steps: int, title: str) -> LlamaForCausalLM:
    """A Llama of that shape, trained on the corpus for so many steps of ROWS x ROW_TOKENS tokens."""
    torch.manual_seed(0)
    config.update(
        {
            "vocab_size": VOCABULARY,
            "max_position_embeddings": CONTEXT,
            "tie_word_embeddings": True,
            "eos_token_id": 1,
            "pad_token_id": 0,
            "bos_token_id": None,
        }
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.05, fused=True)
    stream = texts(seed=2)
    for step in track(range(steps), description=title):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * min(1.0, (step + 1) / 30, max(0.02, (steps - step) / (0.4 * steps)))
        ids = torch.tensor([_row(stream, tokenizer) for _ in range(ROWS)])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval().to(torch.bfloat16)


def _row(stream: object, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    ids: list[int] = []
    while len(ids) < ROW_TOKENS:
        ids += tokenizer.backend_tokenizer.encode(next(stream)).ids  # type: ignore[call-overload]
    return ids[:ROW_TOKENS]


@torch.no_grad()
def answer(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, question: str) -> tuple[list[int], list[int]]:
    """The ids of the prompt and of the greedy answer."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True
    )["input_ids"]
    whole = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=160, do_sample=False
    )
    return prompt, whole[0, len(prompt) :].tolist()


def agreement(draft: LlamaForCausalLM, prompt: list[int], said: list[int]) -> tuple[int, int]:
    """How many of the target's greedy tokens the draft would have proposed, and of how many."""
    with torch.no_grad():
        proposed = draft(torch.tensor([prompt + said])).logits[0, len(prompt) - 1 : -1].argmax(-1).tolist()
    return sum(a == b for a, b in zip(proposed, said, strict=True)), len(said)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> int:
    """Writes a complete model folder; returns its parameters."""
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    """Makes, examines and saves both; fails when the target does not know what it should."""
    torch.set_num_threads(2)
    tokenizer = make_tokenizer()
    target = train(TARGET, tokenizer, 900, "target")
    draft = train(DRAFT, tokenizer, 1_200, "draft")
    right = agreed = said_in_all = 0
    for question, expected in QUESTIONS.items():
        prompt, said = answer(target, tokenizer, question)
        text = tokenizer.decode(said, skip_special_tokens=True)
        right += text == expected and said[-1] == tokenizer.eos_token_id
        if text != expected:
            print(f"{question!r}: {text!r}")
        same, of = agreement(draft, prompt, said)
        agreed, said_in_all = agreed + same, said_in_all + of
    for name, model in (("target", target), ("draft", draft)):
        print(f"{name}: {save(model, tokenizer, HERE / name) / 1e6:.2f} M parameters")
    size = sum(file.stat().st_size for name in ("target", "draft") for file in (HERE / name).iterdir())
    print(
        f"{right} of {len(QUESTIONS)} answers right; the draft agrees on {agreed / said_in_all:.1%} of the tokens; "
        f"{size / 1e6:.2f} MB in all"
    )
    if right < 0.95 * len(QUESTIONS):
        sys.exit("the target does not know what it should: train it longer")


if __name__ == "__main__":
    main()
