"""Operators' orders and autoscalers' decisions as plain data, for status and the operators' pages. Pure."""

import dataclasses
from typing import Any

from deployments.cell.control import Control
from deployments.cell.cordon import Cordon
from deployments.cell.orders import Orders
from deployments.cell.scaling_state import ScalingState


def shown_orders(orders: Orders) -> dict[str, Any]:
    """All that is in force."""
    return {
        "controls": [{"model": model, **shown_control(control)} for model, control in orders.controls],
        "cordons": [shown_cordon(cordon) for cordon in orders.cordons],
    }


def shown_control(control: Control) -> dict[str, Any]:
    """A hold or a pin."""
    return {**dataclasses.asdict(control), "kind": control.kind.value}


def shown_cordon(cordon: Cordon) -> dict[str, Any]:
    """A cordon."""
    return dataclasses.asdict(cordon)


def shown_scaling(state: ScalingState, overdue_s: float | None) -> dict[str, Any]:
    """The last decision on a model; `overdue_s`: how long ago it was, where another one should have come."""
    return {**dataclasses.asdict(state), "overdue_s": overdue_s}
