"""Claims about small steps: to which flow the minimizing movement converges, and how fast."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..measures import TokenCloud
from ..problems import Problem
from ..transport.distance import wasserstein
from .card import Claim, short
from .laboratory import Laboratory

__all__ = ["jko_order_one_head", "jko_order_three_heads", "jko_softmax", "jko_softmax_limit"]

Array = NDArray[np.float64]

ORDER_TOLERANCE = 0.05

#: Absolute tolerance, in radians, of extrapolated distances.
LIMIT_TOLERANCE = 1e-3

SOFTMAX_CASES = ("sphere_three_heads", "sphere_weighted")


@dataclass(frozen=True, kw_only=True, eq=False)
class LimitStudy:
    """Distances between JKO and both flows at the final time, as the step shrinks.

    Attributes
    ----------
    steps : (m,)
    to_gradient, to_softmax : (m,)
        Wasserstein distances in radians.
    between_flows : float
        Distance between the two flows.
    """

    steps: Array
    to_gradient: Array
    to_softmax: Array
    between_flows: float

    @property
    def orders(self) -> Array:
        """Observed orders between consecutive steps, against the gradient flow."""
        return np.diff(np.log(self.to_gradient)) / np.diff(np.log(self.steps))

    @property
    def order(self) -> float:
        """Least-squares order over all steps."""
        return float(np.polyfit(np.log(self.steps), np.log(self.to_gradient), 1)[0])

    @property
    def softmax_limit(self) -> float:
        """Distance to the softmax flow extrapolated to step zero (first order removed)."""
        h, d = self.steps[-2:], self.to_softmax[-2:]
        return float((h[0] * d[1] - h[1] * d[0]) / (h[0] - h[1]))


def limit_study(laboratory: Laboratory, name: str) -> LimitStudy:
    """The study of one case, made once."""

    def make() -> LimitStudy:
        case = laboratory.case(name)
        gradient, softmax = (laboratory.flow(name, v).final for v in ("gradient", "softmax"))
        counts = laboratory.extent.refinements
        ends = [laboratory.movement(name, count).final for count in counts]
        return LimitStudy(
            steps=case.horizon / np.array(counts, dtype=float),
            to_gradient=np.array([wasserstein(end, gradient) for end in ends]),
            to_softmax=np.array([wasserstein(end, softmax) for end in ends]),
            between_flows=wasserstein(gradient, softmax),
        )

    return laboratory.once(("limits", name), make)


def _order_claim(laboratory: Laboratory, key: str, name: str, heads: str) -> Claim:
    study = limit_study(laboratory, name)
    orders = study.orders
    errors = [abs(float(value) - 1) for value in (study.order, *orders)]
    return Claim(
        key=key,
        claim=f"JKO converges to the gradient flow at order 1 ({heads}).",
        measured=(
            f"order {study.order:.3f} over steps {study.steps[0]:g} to {study.steps[-1]:g} "
            "(pairwise "
            f"{orders.min():.3f} to {orders.max():.3f}); W₂ at the end "
            f"{short(study.to_gradient[0], 1)} "
            f"down to {short(study.to_gradient[-1], 1)} rad"
        ),
        expected=f"1.00 ± {ORDER_TOLERANCE:g}, overall and for every pair of steps",
        holds=max(errors) <= ORDER_TOLERANCE,
        how_known="measured order",
        numbers={
            "order": study.order,
            "smallest_order": float(orders.min()),
            "largest_order": float(orders.max()),
            "smallest_error": float(study.to_gradient[-1]),
        },
    )


def jko_order_one_head(laboratory: Laboratory) -> Claim:
    """JKO converges to the gradient flow at order 1 for one head."""
    return _order_claim(laboratory, "jko_order_one_head", "sphere_one_head", "one head")


def jko_order_three_heads(laboratory: Laboratory) -> Claim:
    """JKO converges to the gradient flow at order 1 for three heads."""
    return _order_claim(laboratory, "jko_order_three_heads", "sphere_three_heads", "three heads")


def jko_softmax(laboratory: Laboratory) -> Claim:
    """JKO converges to the multi-head softmax flow (it does not)."""
    studies = {name: limit_study(laboratory, name) for name in SOFTMAX_CASES}
    limits = {name: study.softmax_limit for name, study in studies.items()}
    text = ", ".join(f"{limit:.4f} rad ({name})" for name, limit in limits.items())
    return Claim(
        key="jko_softmax",
        claim="JKO converges to the multi-head softmax flow.",
        measured=f"W₂ at the end, extrapolated to step 0: {text}",
        expected=f"fails: the limit is positive (above {LIMIT_TOLERANCE:g} rad)",
        holds=min(limits.values()) <= LIMIT_TOLERANCE,
        expected_to_hold=False,
        how_known="JKO follows v_grad, which differs from v_soft for H > 1",
        numbers={f"limit_{name}": limit for name, limit in limits.items()},
    )


def known_distance(case: Problem) -> float:
    """Distance between the two flows at the end, from the independent reference data."""
    ends = [
        TokenCloud(case.known[f"flow_{v}_T"], case.cloud.weights) for v in ("gradient", "softmax")
    ]
    return wasserstein(*ends)


def jko_softmax_limit(laboratory: Laboratory) -> Claim:
    """The limit of the distance from JKO to the softmax flow is that between the flows."""
    numbers: dict[str, float] = {}
    parts, errors = [], []
    for name in SOFTMAX_CASES:
        study = limit_study(laboratory, name)
        known = known_distance(laboratory.case(name))
        limit = study.softmax_limit
        errors += [abs(limit - study.between_flows), abs(limit - known)]
        parts.append(f"{limit:.5f} against {study.between_flows:.5f} ({name})")
        numbers |= {f"limit_{name}": limit, f"between_{name}": study.between_flows}
        numbers |= {f"known_{name}": known}
    known_text = " and ".join(f"{numbers[f'known_{name}']:.4f}" for name in SOFTMAX_CASES)
    return Claim(
        key="jko_softmax_limit",
        claim=(
            "As the step shrinks, the distance from JKO to the multi-head softmax flow tends to "
            "the "
            "distance between the two flows."
        ),
        measured=f"{'; '.join(parts)}; largest difference {short(max(errors))} rad",
        expected=f"{known_text} rad, within {LIMIT_TOLERANCE:g}",
        holds=max(errors) <= LIMIT_TOLERANCE,
        how_known="measured limit; independent reference",
        numbers=numbers,
    )
