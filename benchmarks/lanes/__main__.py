"""`python -m benchmarks.lanes`: lanes against first-in-first-out, and ablations, on real traces and the same engines.

For each mix its capacity is measured first: what a closed loop gets through. Then, for each seed and each load (a share
of that capacity), every side runs the same arrivals, run until drained; the sides take turns in who goes first, and
change by applying another spec to the running cluster. Rivals are vLLM's own server, up only while it runs, beside the
idle cluster:

- `priority`: `--scheduling-policy priority`; a request's priority is the length of its prompt.
- `threshold`: `--long-prefill-token-threshold` 4 % of the context, which is what vLLM chooses itself where several
  prompts may prefill at once.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any

import aiohttp
import typer
import yaml

from benchmarks.harness import JsonFile, Traces, console, in_turns, listed, plain_table, run_program, write_json
from benchmarks.lanes.mix import MIXES, SIDES, lane_traffic
from benchmarks.lanes.results import SideResult, overall_table, result_of
from benchmarks.serving.sides import make_side, one_replica_spec, write_spec
from cli.bench.client import BenchClient
from cli.bench.load import BenchLoad, LoadResult, closed_loop, open_loop
from cli.bench.prompts import Prompts, RequestOptions, Vocabulary, measure_vocabulary
from cli.private_cell import free_port
from cluster.spec import ClusterSpec, parse_spec
from planning.workload.trace import Trace

_CLIENTS = 256
_CAPACITY_S = 120.0
"""A closed loop needs as long as several requests before it goes evenly."""
_RIVALS = ("priority", "threshold")


class _ByLength(Prompts):
    """Bodies that tell vLLM's `priority` scheduler to serve short prompts first."""

    def body(self, prompt_tokens: int, output_tokens: int) -> bytes:
        """As in `Prompts`, and `priority`."""
        return b'{"priority":%d,' % prompt_tokens + super().body(prompt_tokens, output_tokens)[1:]


@dataclass(frozen=True, slots=True)
class LaneBenchmark:
    """The running cluster, and what runs on it: for each seed, each load (a share of the capacity) on all sides, with
    arrivals for `duration_s`."""

    spec: ClusterSpec
    folder: Path
    traces: Path
    sides: Sequence[str]
    seeds: Sequence[int]
    loads: Sequence[float]
    duration_s: float

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.spec.gateway.port}"

    async def run(self, mixes: Sequence[str]) -> dict[str, Any]:
        """Starts the cluster; of each mix, measures its capacity and runs all."""
        side = make_side("raylane", self.spec, self.folder)
        console.print("starting the cluster ...")
        await side.server.start()
        try:
            async with BenchClient(self.url, "completions", timeout_s=3_600) as client:
                vocabulary = await measure_vocabulary(client, self.spec.models[0].name)
                found = [await self._contest(client, vocabulary, mix) for mix in mixes]
                return {"duration_s": self.duration_s, "mixes": found}
        finally:
            await side.server.stop()

    async def _contest(self, client: BenchClient, vocabulary: Vocabulary, mix_name: str) -> dict[str, Any]:
        traffic = lane_traffic(self.traces, self.spec.models[0].settings.max_model_len, mix_name)
        await self._apply("fifo")
        capacity = await self._capacity(client, vocabulary, traffic.block(4_000, self.seeds[0]))
        scale, _, long_scale = traffic.scales
        console.print(f"{mix_name}: {capacity:.1f} requests/s (lengths x {scale:.3f}, long ones x {long_scale:.3f})")
        runs: list[dict[str, Any]] = []
        for seed in self.seeds:
            for number, load in enumerate(self.loads):
                mix = traffic.draw(load * capacity, self.duration_s, seed + 1 + number)
                order = in_turns(self.sides, len(runs))
                results = {name: await self._run(client, vocabulary, mix, name) for name in order}
                runs.append({"seed": seed, "load": load, "requests": len(mix), "sides": results})
                _show(load, results)
        for load in self.loads:
            of_load = [run["sides"] for run in runs if run["load"] == load]
            console.print(overall_table(f"{mix_name}, {load:g} x", of_load))
        for run in runs:
            run["sides"] = {name: asdict(result) for name, result in run["sides"].items()}
        return {"mix": mix_name, "capacity": capacity, "scales": traffic.scales, "runs": runs}

    async def _capacity(self, client: BenchClient, vocabulary: Vocabulary, block: Trace) -> float:
        """Requests a second that a closed loop gets through, the first and the last tenth of the time left out."""
        load = BenchLoad(block.prompt_tokens, block.output_tokens, None, _CLIENTS, None, _CAPACITY_S)
        ended = await closed_loop(client, self._prompts(vocabulary), load)
        low, high = 0.1 * _CAPACITY_S, 0.9 * _CAPACITY_S
        return float(((ended >= low) & (ended < high)).sum() / (high - low))

    async def _run(self, client: BenchClient, vocabulary: Vocabulary, mix: Trace, name: str) -> SideResult:
        if name in _RIVALS:
            outcome = await self._run_rival(vocabulary, mix, name)
        else:
            await self._apply(name)
            outcome = await open_loop(client, self._prompts(vocabulary), _load(mix))
        found = result_of(mix, outcome)
        console.print(
            f"  {name}: {len(mix)} requests in {found.elapsed_s:.0f} s, {found.output_tokens_per_s:.0f} output "
            f"tokens/s, failures {found.failures or 'none'}"
        )
        return found

    async def _run_rival(self, vocabulary: Vocabulary, mix: Trace, name: str) -> LoadResult:
        threshold = int(0.04 * self.spec.models[0].settings.max_model_len)
        flags = ("--scheduling-policy", name)
        if name == "threshold":
            flags = ("--long-prefill-token-threshold", str(threshold))
        folder = Path(mkdtemp(prefix=f"{name}-", dir=self.folder))
        side = make_side("bare", self.spec, folder, flags=flags)
        await side.server.start()
        try:
            async with BenchClient(side.url, "completions", timeout_s=3_600) as client:
                prompts = self._prompts(vocabulary, _ByLength if name == "priority" else Prompts)
                return await open_loop(client, prompts, _load(mix))
        finally:
            await side.server.stop()

    async def _apply(self, name: str) -> None:
        text = yaml.safe_load((self.folder / "spec.yaml").read_text(encoding="utf-8")) | SIDES[name]
        desired = parse_spec(yaml.safe_dump(text)).model_dump_json()
        secret = (self.folder / "home" / self.spec.name / "secret").read_text(encoding="utf-8")
        async with (
            aiohttp.ClientSession(headers={"authorization": f"Bearer {secret}"}) as session,
            session.put(self.url + "/raylane/spec", data=desired) as response,
        ):
            if response.status != 200:
                raise RuntimeError(f"the spec of {name!r} was not applied: {await response.text()}")

    def _prompts(self, vocabulary: Vocabulary, kind: type[Prompts] = Prompts) -> Prompts:
        return kind(vocabulary, RequestOptions(self.spec.models[0].name, "completions", ignore_eos=True), 0)


def _load(mix: Trace) -> BenchLoad:
    """The same for a client."""
    return BenchLoad(mix.prompt_tokens, mix.output_tokens, mix.arrived_s, None, len(mix), None)


def _show(load: float, results: dict[str, SideResult]) -> None:
    columns = ("side", "lane", "requests", "missed", "p50", "p99", "p99 fifo / this", "mean")
    table = plain_table(f"{load:g} x capacity: time to first token in ms", *columns, left=2)
    fifo = results.get("fifo")
    for name, result in results.items():
        for index, lane in enumerate(result.lanes):
            gain = f"{fifo.lanes[index].ttft_p99_s / lane.ttft_p99_s:.2f}" if fifo else "-"
            p50, p99, mean = (f"{1e3 * value:.0f}" for value in (lane.ttft_p50_s, lane.ttft_p99_s, lane.ttft_mean_s))
            table.add_row(name, lane.lane, str(lane.requests), str(lane.missed), p50, p99, gain, mean)
    console.print(table)


def main(
    traces: Traces,
    loads: Annotated[str, typer.Option(help="Shares of the measured capacity.")] = "0.7,0.9,1.2",
    sides: Annotated[str, typer.Option(help=f"Some of: {', '.join((*SIDES, *_RIVALS))}.")] = "lanes,fifo",
    duration_s: Annotated[float, typer.Option(help="Seconds of arrivals for each load and side.")] = 300.0,
    mixes: Annotated[str, typer.Option(help=f"Some of: {', '.join(MIXES)}.")] = "azure-mooncake",
    seeds: Annotated[str, typer.Option(help="Seeds of the arrivals. All loads run for each seed.")] = "0",
    json_file: JsonFile = None,
) -> None:
    """Compare lanes with first-in-first-out on real traces, on the same engines."""
    chosen, chosen_mixes = listed("--sides", sides, (*SIDES, *_RIVALS)), listed("--mixes", mixes, MIXES)
    text = one_replica_spec(free_port())

    async def work(folder: Path) -> dict[str, Any]:
        spec = yaml.safe_load(text)
        spec["gateway"]["timeouts"] = {"queue_wait_s": 1_800, "total_s": 3_600}
        spec["classes"] = [{"name": "interactive", "ttft_ms": 5_000}]
        cluster, numbers = write_spec(folder, yaml.safe_dump(spec, sort_keys=False)), [*map(int, seeds.split(","))]
        shares = [*map(float, loads.split(","))]
        return await LaneBenchmark(cluster, folder, traces, chosen, numbers, shares, duration_s).run(chosen_mixes)

    write_json(run_program(work), json_file)


if __name__ == "__main__":
    typer.run(main)
