"""Claims about the schemes of higher order."""

from __future__ import annotations

import numpy as np

from ..diagnostics.convergence import convergence_study
from .card import Claim, short
from .laboratory import Laboratory

__all__ = ["bdf2_order", "midpoint_order", "old_mobility_order", "richardson_order", "ve2_order"]

CASE = "sphere_three_heads"


def _order_claim(
    laboratory: Laboratory,
    key: str,
    scheme: str,
    name: str,
    order: int,
    band: float,
    counts: tuple[int, ...],
) -> Claim:
    """The observed order of a scheme, by regression and for the finest pair of steps.

    ``counts`` are numbers of steps for which the order shows and the inner tolerance does not.
    """
    case = laboratory.case(CASE)
    steps = case.horizon / np.array(counts, dtype=float)
    tolerance = 1e-12 if order > 2 else 1e-10
    table = convergence_study(
        case.model, case.cloud, (0.0, case.horizon), steps, scheme, tolerance=tolerance
    )
    observed = (table.order, float(table.pairwise_orders[-1]))
    return Claim(
        key=key,
        claim=f"{name} converges to the gradient flow at order {order} ({CASE}).",
        measured=(
            f"order {observed[0]:.3f} over steps {steps[0]:g} to {steps[-1]:g}, finest pair "
            f"{observed[1]:.3f}; largest W₂ {short(table.errors[0], 1)} down to "
            f"{short(table.errors[-1], 1)} rad"
        ),
        expected=f"{order} ± {band:g}, overall and for the finest pair",
        holds=max(abs(value - order) for value in observed) <= band,
        how_known="measured order",
        numbers={
            "order": observed[0],
            "finest_order": observed[1],
            "smallest_error": float(table.errors[-1]),
        },
    )


def midpoint_order(laboratory: Laboratory) -> Claim:
    """The midpoint scheme converges at order 2."""
    return _order_claim(
        laboratory, "midpoint_order", "midpoint", "The midpoint scheme", 2, 0.05, (10, 20, 40)
    )


def bdf2_order(laboratory: Laboratory) -> Claim:
    """The two-step scheme BDF2 converges at order 2."""
    return _order_claim(
        laboratory, "bdf2_order", "bdf2", "The two-step scheme BDF2", 2, 0.1, (20, 40, 80)
    )


def ve2_order(laboratory: Laboratory) -> Claim:
    """Variational extrapolation converges at order 2."""
    return _order_claim(
        laboratory, "ve2_order", "ve2", "Variational extrapolation (VE2)", 2, 0.1, (10, 20)
    )


def richardson_order(laboratory: Laboratory) -> Claim:
    """Richardson extrapolation of the midpoint scheme converges at order 4."""
    return _order_claim(
        laboratory,
        "richardson_order",
        "richardson-midpoint",
        "The extrapolated midpoint scheme",
        4,
        0.2,
        (10, 20, 40),
    )


def old_mobility_order(laboratory: Laboratory) -> Claim:
    """With the mobility of the old measure the midpoint scheme is of order 1 only."""
    return _order_claim(
        laboratory,
        "old_mobility_order",
        "midpoint,mobility=old",
        "The midpoint scheme with the mobility frozen at the old measure",
        1,
        0.1,
        (40, 80),
    )
