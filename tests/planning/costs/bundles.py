"""Small profiles of layers, and their files."""

import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from planning.costs.profile import Points, Profile

TOKENS = (1, 64, 512, 2_048)


def flat(us: float, sizes: Sequence[int] = TOKENS) -> Points:
    return [(size, us) for size in sizes]


ATTENTION = [
    *((chunk, past, 0, 0, 10.0 + chunk * (past + chunk / 2) / 1e4) for chunk in (16, 2_048) for past in (0, 1_024)),
    *((0, 0, decodes, kv, 10.0 + decodes * kv / 1e3) for decodes in (1, 64) for kv in (16, 1_024)),
]
DENSE = Profile(
    dense={
        **{name: flat(1.0) for name in ("embedding", "final_layernorm", "layernorm", "rotary_emb", "act_fn")},
        **{name: flat(10.0) for name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")},
    },
    per_sequence={"lm_head": flat(100.0, (1, 128)), "sampler": flat(20.0, (1, 128))},
    attention=ATTENTION,
)
SPARSE = replace(
    DENSE,
    dense={name: points for name, points in DENSE.dense.items() if name not in ("gate_up_proj", "act_fn", "down_proj")},
    moe=[(tokens, experts, 10.0 + experts) for tokens in TOKENS for experts in (8, 64, 128)],
)
"""Of a mixture of experts."""


def written(
    folder: Path,
    unit: str = "time_us",
    factor: float = 1.0,
    packed: bool = False,
    names: str = "{}.csv",
    profile: Profile = SPARSE,
) -> None:
    """The profile as files."""
    tables = {
        "dense": ["layer,tokens", *(f"{name},{x}" for name, points in profile.dense.items() for x, _ in points)],
        "per_sequence": [
            "layer,sequences",
            *(f"{n},{x}" for n, points in profile.per_sequence.items() for x, _ in points),
        ],
        "attention": [
            "prefill_chunk,kv_prefill,n_decode,kv_decode",
            *(",".join(map(str, row[:4])) for row in profile.attention),
        ],
        "moe": ["tokens,activated_experts", *(f"{tokens},{experts}" for tokens, experts, _ in profile.moe)],
    }
    times = {
        "dense": [us for points in profile.dense.values() for _, us in points],
        "per_sequence": [us for points in profile.per_sequence.values() for _, us in points],
        "attention": [row[4] for row in profile.attention],
        "moe": [us for *_, us in profile.moe],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for kind, rows in tables.items():
        values = [unit, *(str(factor * us) for us in times[kind])]
        text = "\n".join(f"{row},{value}" for row, value in zip(rows, values, strict=True))
        file = folder / names.format(kind)
        if packed:
            file.with_name(file.name + ".gz").write_bytes(gzip.compress(text.encode()))
        else:
            file.write_text(text)
