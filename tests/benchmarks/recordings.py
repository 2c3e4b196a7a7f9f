"""Small recordings in the formats of the real ones, so that scenarios on recorded traffic are tested on every
machine."""

import csv
import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

SPAN_S = 900.0


def write_recordings(folder: Path) -> Path:
    """Two hours of Azure's (of a quarter of an hour each), and ServeGen's tables."""
    rng = np.random.default_rng(0)
    _azure(folder / "azure2023_conv.csv.gz", rng, per_s=3.0, prompt=900, output=200)
    _azure(folder / "azure2023_code.csv.gz", rng, per_s=1.2, prompt=1_500, output=30)
    _servegen(folder, {"m-small": (12, 260.0), "deepseek-r1": (1, 8.0)})
    _servegen(folder / "servegen_mid", {"m-mid": (13, 820.0)})
    return folder


def _azure(path: Path, rng: np.random.Generator, per_s: float, prompt: int, output: int) -> None:
    start = datetime(2023, 11, 16, 18, tzinfo=UTC)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for at_s in np.cumsum(rng.exponential(1 / per_s, int(SPAN_S * per_s))):
            moment = (start + timedelta(seconds=float(at_s))).strftime("%Y-%m-%d %H:%M:%S.%f")
            file.write(f"{moment},{rng.integers(1, 2 * prompt)},{rng.integers(1, 2 * output)}\n")


def _servegen(folder: Path, days: dict[str, tuple[int, float]]) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / "servegen_client_rates_600s.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["model", "client", "t", "rate", "dist", "p1"])
        for model, (count, rate) in days.items():
            for at_s in range(0, 86_400 * count, 600):
                swell = 1 + 0.5 * np.sin(2 * np.pi * at_s / 86_400)
                rows.writerows(
                    [model, client, at_s, rate * swell, "Gamma", shape] for client, shape in ((0, 0.5), (1, 1.0))
                )
    with (folder / "servegen_client_lengths_6h.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["model", "client", "t", "field", "min", "q50", "q90", "max"])
        for model in days:
            rows.writerows([model, client, 0, "input_tokens", 5, 200, 2_000, 20_000] for client in (0, 1))
            rows.writerows([model, client, 0, "output_tokens", 1, 800, 3_000, 9_000] for client in (0, 1))
