"""Draws requests from ServeGen's windows. Pure.

The rate of a window was counted, so the number of requests drawn in it is that count (scaled), and gaps of the window's shape are stretched to fill
it: a renewal process at that rate would, at the recorded shapes (down to 0.01), miss the count by far. Prompt and output are drawn independently; a
window without lengths takes those of the client's last window before it, else of its first.
"""

import numpy as np

from planning.workload.arrivals import FloatArray
from planning.workload.labels import Labels
from planning.workload.lengths import IntArray, Quantiles
from planning.workload.renewal import gaps
from planning.workload.servegen.tables import WINDOW_S, Client, ServeGenError, Window
from planning.workload.trace import Trace


def drawn_trace(clients: dict[str, Client], from_s: float, to_s: float, rate_scale: float, rng: np.random.Generator, most: int) -> Trace:
    """Requests of the seconds `from_s` to `to_s`, at `rate_scale` times the rate; `from_s` becomes second 0.

    Raises ServeGenError where they would be more than `most`.
    """
    chosen = [
        (code, client, window)
        for code, client in enumerate(clients.values())
        for window in client.windows
        if window.at_s < to_s and from_s < window.at_s + WINDOW_S
    ]
    expected = sum(window.rate for _, _, window in chosen) * WINDOW_S * rate_scale
    if expected > most:
        raise ServeGenError(f"servegen.rate_scale = {rate_scale:g}: {expected:.3g} requests are expected; allowed: at most {most}")
    parts = [
        (code, times, _lengths(client.prompt, window.at_s, len(times), rng), _lengths(client.output, window.at_s, len(times), rng))
        for code, client, window in chosen
        if len(times := _times(window, rate_scale, rng))
    ]
    if not parts:
        return Trace(np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    codes = np.repeat([part[0] for part in parts], [len(part[1]) for part in parts]).astype(np.int32)
    arrived, prompt, output = (np.concatenate([part[column] for part in parts]) for column in (1, 2, 3))
    whole = Trace(arrived, prompt, output, tenant=Labels(tuple(clients), codes)).at(arrived - from_s)
    return whole.take(np.flatnonzero((whole.arrived_s >= 0) & (whole.arrived_s < to_s - from_s)))


def _times(window: Window, rate_scale: float, rng: np.random.Generator) -> FloatArray:
    count = int(window.rate * WINDOW_S * rate_scale + rng.random())  # rounded up as often as its fraction says
    if not count:
        return np.zeros(0)
    until = np.cumsum(gaps(window.kind, window.shape, count + 1, rng))
    if until[-1] <= 0:
        return np.sort(window.at_s + WINDOW_S * rng.random(count))  # gaps so uneven that all of them are 0 to a float
    until_s = np.nextafter(window.at_s + WINDOW_S, 0)  # gaps that are 0 to a float would put the last ones on the next window's edge
    times: FloatArray = np.minimum(window.at_s + WINDOW_S * (until[:-1] / until[-1]), until_s)
    return times


def _lengths(known: tuple[tuple[float, Quantiles], ...], at_s: float, count: int, rng: np.random.Generator) -> IntArray:
    before = [quantiles for since_s, quantiles in known if since_s <= at_s]
    return (before[-1] if before else known[0][1]).sample(count, rng)
