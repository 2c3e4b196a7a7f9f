"""ServeGen's tables: small ones as CSV, and the real ones; counts, burstiness and lengths of what is drawn."""

from pathlib import Path

import numpy as np
import pytest

from planning.workload.servegen import ServeGenClient, ServeGenError, drawn_trace, read_tables
from planning.workload.traffic.draw import draw
from planning.workload.traffic.file import TrafficError, load_traffic, parse_traffic
from tests.planning.workload.real import real

RATES = (
    "model,client,t,rate,cv,dist,p1,p2\nm,0,0,2,1,Gamma,1,1\nm,0,600,0.5,1,Weibull,0.5,1\n"
    "m,3,600,1,1,Gamma,0.01,1\nn,9,0,1,1,Gamma,1,1\n"
)
LENGTHS = "".join(
    ["model,client,t,field,mean,min,max,q50\n"]
    + [
        f"m,{client},600,{field},9,1,{maximum},{maximum // 2}\n"
        for client in (0, 3)
        for field, maximum in (("input_tokens", 100), ("output_tokens", 20))
    ]
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "servegen_client_rates_600s.csv").write_text(RATES)
    (tmp_path / "servegen_client_lengths_6h.csv").write_text(LENGTHS)
    return tmp_path


def drawn(
    clients: dict[str, ServeGenClient],
    *,
    from_s: float = 0,
    to_s: float = 1_200,
    scale: float = 1.0,
    maximum: int = 10**6,
) -> tuple[int, list[str], float]:
    trace = drawn_trace(clients, from_s, to_s, scale, np.random.default_rng(0), maximum)
    assert (np.diff(trace.arrived_s) >= 0).all()
    assert trace.tenant is not None
    return len(trace), sorted(trace.tenant.used()), float(trace.arrived_s[-1])


def test_counts_are_those_that_were_recorded(folder: Path) -> None:
    clients = read_tables(folder, "m")
    assert drawn(clients)[:2] == (1_200 + 300 + 600, ["client-0", "client-3"])
    assert drawn(clients, to_s=600)[:2] == (1_200, ["client-0"])
    assert drawn(clients, scale=0.5)[0] == 1_050
    count, _, last_s = drawn(clients, from_s=300, to_s=600)
    assert count == pytest.approx(600, abs=80)
    assert last_s < 300


@pytest.mark.parametrize(
    ("model", "text", "problem"),
    [
        ("x", RATES, "servegen.model = 'x': not in .*; allowed: m, n"),
        ("m", "model,client\nm,0\n", "are not ServeGen's"),
    ],
)
def test_bad_tables_are_named(folder: Path, model: str, text: str, problem: str) -> None:
    (folder / "servegen_client_rates_600s.csv").write_text(text)
    with pytest.raises(ServeGenError, match=problem):
        read_tables(folder, model)
    with pytest.raises(ServeGenError, match="holds no servegen_client_rates_600s"):
        read_tables(folder / "nowhere", model)


def test_a_traffic_file_draws_from_them(folder: Path) -> None:
    (folder / "file.yaml").write_text("duration_s: 1200\nservegen: {folder: ., model: m, class: batch}\n")
    trace = draw(load_traffic(folder / "file.yaml"))
    assert trace.traffic_class is not None
    assert (len(trace), trace.traffic_class.used()) == (2_100, ("batch",))
    with pytest.raises(TrafficError, match=r"servegen.model = 'x'"):
        draw(parse_traffic(f"duration_s: 1200\nservegen: {{folder: {folder}, model: x}}\n"))
    with pytest.raises(ServeGenError, match=r"rate_scale = 1: .* allowed: at most 9"):
        drawn(read_tables(folder, "m"), maximum=9)


@pytest.mark.whole
def test_the_real_tables_are_drawn_from() -> None:
    pytest.importorskip("pyarrow", reason="the real tables are Parquet")
    clients = read_tables(real("servegen_client_rates_600s.parquet").parent, "m-small")
    trace = drawn_trace(clients, 36_000, 39_600, 0.01, np.random.default_rng(0), 10**6)
    recorded = (
        sum(window.rate for client in clients.values() for window in client.windows if 36_000 <= window.at_s < 39_600)
        * 600
        * 0.01
    )
    assert len(trace) == pytest.approx(recorded, rel=0.05)
    assert 50 < np.median(trace.prompt_tokens) < 5_000
