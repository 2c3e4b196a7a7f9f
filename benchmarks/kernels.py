"""`python -m benchmarks.kernels TABLES`: how far the roofline's matrix products are from measured ones, GPU by GPU.

`TABLES` has `GPU__gemm__*.parquet` from ai-dynamo/aiconfigurator (systems/data). For each GPU: the errors of the
shipped constants (`planning/costs/kernels.py`), and of constants fitted to the other GPUs alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.harness import ROOT, JsonFile, console, plain_table, write_json
from cluster.hardware import Gpu, gpu_named
from planning.costs import kernels

Floats = NDArray[np.float64]
TABLES = ROOT.parent / "shared" / "data" / "hardware" / "kernels"
FILES = {"a100_sxm": "a100-80g", "h100_sxm": "h100", "l40s": "l40s", "rtx_pro_6000_server": "rtx-pro-6000"}
ROWS = (1, 4, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192)
MIN_WEIGHTS, LARGEST_SIDE = 8 << 20, 32_768
"""Smaller matrices stay in a GPU's cache while they are measured, which those of a model do not."""
SHIPPED = (kernels.LAUNCH_S * 1e6, kernels.MEMORY, kernels.COMPUTE, kernels.BLEND, kernels.ROWS)
ELEMENT = 2


@dataclass(frozen=True, slots=True)
class Products:
    """Measured bf16 products of one GPU: rows, outputs, inputs, seconds."""

    gpu: Gpu
    rows: Floats
    outputs: Floats
    inputs: Floats
    seconds: Floats


def read_products(folder: Path, name: str) -> Products:
    """Raises FileNotFoundError."""
    file = next(folder.glob(f"{name}__gemm__*.parquet"), None)
    if file is None:
        raise FileNotFoundError(f"{folder}: no {name}__gemm__*.parquet")
    table = pd.read_parquet(file)
    chosen = table[
        (table.gemm_dtype == "bfloat16")
        & table.m.isin(ROWS)
        & (table.n * table.k >= MIN_WEIGHTS)
        & (table.n <= LARGEST_SIDE)
        & (table.k <= LARGEST_SIDE)
    ]
    middle = chosen.groupby(["m", "n", "k"]).latency.median().reset_index()
    rows, outputs, inputs, ms = (middle[key].to_numpy(dtype=np.float64) for key in ("m", "n", "k", "latency"))
    return Products(gpu_named(FILES[name]), rows, outputs, inputs, 1e-3 * ms)


def predicted(constants: Iterable[float], products: Products) -> Floats:
    """`kernels.Roof.matrix_s` and a launch, with these constants instead of the shipped ones."""
    launch_us, memory, compute, blend, min_rows = constants
    rows, outputs, inputs, gpu = products.rows, products.outputs, products.inputs, products.gpu
    moved = ELEMENT * (inputs * outputs + rows * (inputs + outputs))
    read_s = moved / (memory * gpu.memory_bytes_per_s)
    compute_s = 2 * np.maximum(rows, min_rows) * inputs * outputs / (compute * gpu.bf16_flops)
    seconds: Floats = 1e-6 * launch_us + (read_s**blend + compute_s**blend) ** (1 / blend)
    return seconds


def fitted(others: list[Products]) -> Floats:
    """The constants of the least mean |log error|, each GPU counting the same."""

    def loss(constants: Floats) -> float:
        if min(constants) <= 0:
            return 10.0
        logs = (np.abs(np.log(predicted(constants, each) / each.seconds)).mean() for each in others)
        return float(np.mean(list(logs)))

    starts = ((4.0, 0.8, 0.8, 3.0, 16.0), (4.0, 0.8, 0.8, 1.5, 64.0))
    found = (minimize(loss, start, method="Nelder-Mead", options={"maxiter": 3_000}) for start in starts)
    best: Floats = min(found, key=lambda each: each.fun).x
    return best


def errors(constants: Iterable[float], products: Products) -> dict[str, float]:
    """The mean |relative error|, and the median relative error of few and of many rows."""
    error = predicted(constants, products) / products.seconds - 1
    few = products.rows <= 64
    return {
        "mean": float(np.abs(error).mean()),
        "median to 64 rows": float(np.median(error[few])),
        "median above": float(np.median(error[~few])),
    }


def main(
    tables: Annotated[Path, typer.Argument(help="The folder of measured kernels.")] = TABLES, out: JsonFile = None
) -> None:
    """See the module's docstring."""
    measured = [read_products(tables, name) for name in FILES]
    result = []
    for each in measured:
        own = fitted([other for other in measured if other is not each])
        for how, constants in (("shipped", SHIPPED), ("fitted to the others", tuple(own.tolist()))):
            result.append({"gpu": each.gpu.title, "constants": how, "values": constants, **errors(constants, each)})
    columns = ("gpu", "constants", "mean", "median to 64 rows", "median above")
    table = plain_table("Errors of the roofline's matrix products", *columns, left=2)
    for row in result:
        table.add_row(str(row["gpu"]), str(row["constants"]), *(f"{row[column]:+.1%}" for column in columns[2:]))
    console.print(table)
    write_json({"products": result}, out)


if __name__ == "__main__":
    typer.run(main)
