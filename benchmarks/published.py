"""`python -m benchmarks.published FOLDER`: the time between tokens by data sheets, beside published runs of vLLM.

FOLDER has `vllm_h100_b200.csv` and `configs/`, as NVIDIA's aiconfigurator publishes them (closed loops of so many
clients on one engine). Settings that the table leaves out are those of InferenceX's launch scripts, from which most of
its runs come: the type of the KV cache, and how many tokens a step may have.

A client waits for the step of all decodes, and for the chunks of the other clients' prompts, of which each has one
while it decodes:

    TPOT = decodes + (clients - 1) / output tokens * (what the chunks of a prompt take beside the decodes)
"""

import csv
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.harness import JsonFile, console, plain_table, write_json
from cluster.hardware import gpu_named
from cluster.spec.models import EngineSettings
from deployments.engine_model.cost_model import Chunk
from planning.costs.profile import Costs
from planning.costs.roofline import roofline
from planning.fit.architecture import read_architecture
from planning.fit.memory import batch_defaults, plan_of
from planning.fit.verdict import fit

_CONFIGS = {
    "MiniMaxAI/MiniMax-M2.5": "MiniMaxAI--MiniMax-M2.5",
    "meta-llama/Llama-3.1-70B": "nvidia--Llama-3.1-70B-Instruct-FP8",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "Qwen/Qwen3-32B": "Qwen--Qwen3-32B",
}
_DRAWN = 0.9
"""Lengths of InferenceX are drawn between 0.8 and 1.0 of what the table says."""
_HELD = 0.6
"""Of an answer's tokens, how many a request has on average when the KV cache decides how many run: a guess."""
_CONTEXT = 10_240
_CLIENTS = 512
"""Rows with so many name no limit of the engine."""


@dataclass(frozen=True)
class Point:
    """A row of the table. `family`: GPU and format."""

    row: Mapping[str, str]
    folder: Path

    @property
    def model(self) -> str:
        return self.row["model_path"]

    @property
    def format(self) -> str:
        return "mxfp4" if "gpt-oss" in self.model else self.row["precision"] or "bf16"

    @property
    def gpu(self) -> str:
        return self.row["system"].removesuffix("_sxm")

    @property
    def clients(self) -> int:
        return int(self.row["batch_size"])

    @property
    def measured_ms(self) -> float:
        return float(self.row["silicon_tpot_ms"])

    @property
    def source(self) -> str:
        return "gap analysis" if "gap-analysis" in self.row["silicon_data_source"] else "InferenceX"

    def left_out(self) -> str:
        """Why; empty: it is not."""
        if self.model not in _CONFIGS or ("MiniMax" in self.model and self.row["precision"] != "fp8"):
            return f"no configuration: {self.model} {self.row['precision']}"
        if self.clients == _CLIENTS:
            return f"{_CLIENTS} clients, and no limit of the engine"
        if self.row["moe_ep_size"] == "0":
            return "exceeds the GPU's FLOP/s"
        return ""

    def predicted(self) -> tuple[float, float, float]:
        """Milliseconds, and the ends of their range."""
        costs, data, step_tokens, kv_tokens = _engine(self.folder, *self._engine())
        scale = _DRAWN if self.source == "InferenceX" else 1.0
        prompt, output = round(scale * int(self.row["isl"])), round(scale * int(self.row["osl"]))
        # With data-parallel attention, the clients are those of one rank.
        clients = self.clients if data > 1 else max(1, min(self.clients, int(kv_tokens / (prompt + _HELD * output))))
        model, kv = costs.model, clients * (prompt + output / 2)
        seconds, others, past = model.step_s([], data * clients, data * kv, data * clients), clients - 1, 0
        while others and past < prompt:
            size = min(step_tokens - clients, prompt - past)
            decodes, read = data * others, data * kv * others / clients
            beside = model.step_s(data * [Chunk(size, past)], decodes, read, data * int(past + size == prompt))
            seconds += others / output * max(0.0, beside - model.step_s([], decodes, read, decodes))
            past += size
        low, high = (sum(one.share * getattr(one, end) for one in costs.sources) for end in ("low", "high"))
        return 1e3 * seconds, 1e3 * low * seconds, 1e3 * high * seconds

    def _engine(self) -> tuple[str, str, str, int, int, bool]:
        row = self.row
        tensor, data = int(row["tp_size"]), int(row["attention_dp_size"] or 1)
        return self.model, row["precision"], self.gpu, tensor // data, data, int(row["moe_ep_size"]) > 1


@cache
def _engine(
    folder: Path, model: str, precision: str, name: str, tensor: int, data: int, experts: bool
) -> tuple[Costs, int, int, int]:
    """The costs, the data-parallel ranks, the tokens of a step of one of them, and those of its KV cache."""
    content: dict[str, Any] = json.loads((folder / "configs" / f"{_CONFIGS[model]}.json").read_text(encoding="utf-8"))
    is_llama, is_minimax = "Llama" in model, "MiniMax" in model
    if is_llama:  # NVIDIA's checkpoints say it in another file
        algorithm = {"fp8": "FP8", "fp4": "NVFP4"}[precision]
        content["quantization_config"] = {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"]}
    gpu = gpu_named(name)
    settings = EngineSettings(
        tensor_parallel_size=tensor,
        data_parallel_size=data,
        enable_expert_parallel=experts,
        kv_cache_dtype="fp8" if is_llama or ("gpt-oss" in model and name == "b200") else "auto",
        max_num_batched_tokens=8_192 if is_llama or "gpt-oss" in model else batch_defaults(gpu)[0],
        gpu_memory_utilization=0.95 if is_minimax and name == "b200" else 0.9,
        max_model_len=_CONTEXT,
        max_num_seqs=_CLIENTS,
    )
    architecture = read_architecture(content)
    plan = plan_of(architecture, settings, gpu)
    costs = roofline(plan)
    return costs, data, settings.max_num_batched_tokens, fit(architecture, settings, gpu).kv_tokens


def read_points(folder: Path) -> tuple[list[Point], Counter[str]]:
    """The points that are predicted, and how many are not, by the reason. Raises OSError."""
    with (folder / "vllm_h100_b200.csv").open(encoding="utf-8", newline="") as file:
        points = [Point(row, folder) for row in csv.DictReader(file)]
    left_out = Counter(reason for point in points if (reason := point.left_out()))
    return [point for point in points if not point.left_out()], left_out


def summary(rows: Iterable[tuple[float, bool]]) -> dict[str, float]:
    """Of relative errors, and whether a range held."""
    errors, held = zip(*rows, strict=True)
    sizes = [abs(error) for error in errors]
    return {
        "points": len(sizes),
        "median_error": statistics.median(sizes),
        "mean_error": statistics.mean(sizes),
        "bias": statistics.median(errors),
        "within_a_quarter": sum(size <= 0.25 for size in sizes) / len(sizes),
        "in_range": sum(held) / len(held),
    }


def main(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="With vllm_h100_b200.csv and configs/.")],
    json_file: JsonFile = None,
) -> None:
    """Compare what data sheets predict with published runs."""
    points, left_out = read_points(folder)
    groups: defaultdict[tuple[str, ...], list[tuple[float, bool]]] = defaultdict(list)
    for point in points:
        predicted, low, high = point.predicted()
        found = predicted / point.measured_ms - 1, low <= point.measured_ms <= high
        name = point.model.partition("/")[2]
        for group in (
            ("all", "", ""),
            ("GPU and format", point.gpu, point.format),
            ("model", name, f"{point.gpu} {point.format}"),
            ("clients", f"{point.clients:4d}", ""),
            ("data-parallel ranks", point.row["attention_dp_size"] or "not said", name),
            ("source", point.source, ""),
        ):
            groups[group].append(found)
    summaries = {group: summary(rows) for group, rows in sorted(groups.items())}
    columns = ("by", "", "", "points", "median error", "mean", "bias", "within 25 %", "in range")
    table = plain_table("Predicted and published", *columns, left=3)
    for names, one in summaries.items():
        shares = [f"{100 * one[key]:.1f} %" for key in list(one)[1:]]
        table.add_row(*names, f"{one['points']:.0f}", *shares)
    console.print(table)
    for reason, count in left_out.most_common():
        console.print(f"left out: {count} rows, {reason}")
    write_json({"groups": [[*names, one] for names, one in summaries.items()], "left_out": left_out}, json_file)


if __name__ == "__main__":
    typer.run(main)
