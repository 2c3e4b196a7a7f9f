"""Figures of a worksheet that are more than ten times outside what the tables and the spec know: most likely in another
unit. Pure."""

from collections.abc import Iterator

from planning.capacity.problem import PriceKind
from planning.plans.prices import listed_prices
from planning.plans.question import Case
from planning.plans.rates import estimated_rate

TIMES = 10


def outliers(case: Case) -> list[str]:
    """A line each: the figure, and what it was compared with."""
    return [*_prices(case), *_lengths(case), *_rates(case)]


def _prices(case: Case) -> Iterator[str]:
    others = case.sheet.model_copy(update={"gpu_prices": ()})
    for number, own in enumerate(case.sheet.gpu_prices):
        view = next((one.view for one in case.offers if one.gpu == own.gpu), None)
        if view is None:
            continue
        region = case.spec.region(own.region)
        known = [(usd, source) for _, usd, source, _ in listed_prices(own.gpu, view, region, others, case.spec) if usd]
        for kind in PriceKind if known else ():
            usd = getattr(own, kind.price_key)
            key = f"gpu_prices.{number}.{kind.price_key} = {usd}"
            if usd is not None and usd > TIMES * max(known)[0]:
                yield f"{key}: over ten times the highest that is known, {_price(max(known))}"
            elif usd is not None and usd < min(known)[0] / TIMES:
                yield f"{key}: under a tenth of the lowest that is known, {_price(min(known))}"


def _price(known: tuple[float, str]) -> str:
    return f"${known[0]:.3g} ({known[1]})"


def _lengths(case: Case) -> Iterator[str]:
    shortest = case.spec.lanes[0]
    for number, stream in enumerate(case.streams):
        tokens = float((stream.lengths.prompts + stream.lengths.outputs).mean())
        if shortest.up_to_tokens and tokens < shortest.up_to_tokens / TIMES:
            limit = f"lanes.{shortest.name}.up_to_tokens = {shortest.up_to_tokens}"
            yield f"demand.{number}: {tokens:.0f} tokens of prompt and answer on average: under a tenth of {limit}"


def _rates(case: Case) -> Iterator[str]:
    """Against what the pools of the spec carry by the equation, each model with all of them."""
    pools = [pool for region in case.spec.regions for pool in region.pools]
    for number, stream in enumerate(case.streams):
        peak = max(map(sum, zip(*stream.rates.values(), strict=True)))
        carried = 0.0
        for offer in {one.gpu: one for one in case.offers if one.model == stream.model}.values():
            found = [(band.share, estimated_rate(offer, band)) for band in case.bands if band.stream is stream]
            own = sum(pool.gpus or pool.nodes for pool in pools if pool.accelerator == offer.gpu)
            if found and all(rate for _, rate in found):
                carried += own / offer.gpus / sum(share / rate for share, rate in found)
        if carried and peak > TIMES * carried:
            limit = f"what the spec's pools carry, {carried:,.3g}"
            yield f"demand.{number}: {peak:,.4g} requests/s at its peak: over ten times {limit}"
