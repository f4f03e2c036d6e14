"""Claims about the weighted distance: it is equivalent to the plain one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import sphere
from ..attention.heads import Heads
from ..attention.model import AttentionModel
from ..measures import TokenCloud
from ..transport.cost import any_log
from ..transport.plan import optimal_plan
from ..transport.weighted import dynamic_distance, weighted_distance
from .card import Claim, short
from .laboratory import Laboratory, measured

__all__ = ["dynamic_bounds", "frozen_bounds"]

Array = NDArray[np.float64]

#: Relative tolerance of bounds that are met with equality in special cases.
FROZEN_TOLERANCE = 1e-9

#: The dynamic distance is minimised to about this relative accuracy.
DYNAMIC_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundStudy:
    """Ratios ``W^2 / W_2^2`` and the bounds for each of them.

    Attributes
    ----------
    lower, ratio, upper : (m,)
        Extremes of the mobility where the bounds need them, and the measured ratio.
    norms : (m,)
        ``max |D|``: the ratio lies between ``exp(-max|D|)`` and ``exp(max|D|)``.
    """

    lower: Array
    ratio: Array
    upper: Array
    norms: Array

    @property
    def slack(self) -> float:
        """Least relative distance of a ratio to its bounds, negative if one is broken."""
        return float(min((self.ratio / self.lower).min(), (self.upper / self.ratio).min()) - 1)

    @property
    def prior_slack(self) -> float:
        """The same for the a priori bounds."""
        logs = np.abs(np.log(self.ratio))
        return float(np.expm1((self.norms - logs).min()))


def _pairs(
    count: int, most: int, seed: int
) -> Iterator[tuple[AttentionModel, TokenCloud, TokenCloud]]:
    """Random pairs of weighted clouds of different sizes, in several dimensions."""
    rng = np.random.default_rng(seed)
    for index in range(count):
        dim, heads = (3, 2, 5)[index % 3], (3, 1, 10)[(index // 3) % 3]
        model = AttentionModel(Heads.gaussian(heads, dim, rng))
        clouds = []
        for _ in range(2):
            n = int(rng.integers(most // 2, most + 1))
            points = TokenCloud.uniform(n, dim, rng).points
            clouds.append(TokenCloud(points, rng.dirichlet(np.ones(n))))
        yield model, clouds[0], clouds[1]


def _study(rows: list[tuple[float, float, float, float]]) -> BoundStudy:
    lower, ratio, upper, norms = np.array(rows).T
    return BoundStudy(lower=lower, ratio=ratio, upper=upper, norms=norms)


@measured
def frozen_study(laboratory: Laboratory) -> BoundStudy:
    """The frozen distance; extremes of the mobility over the source tokens."""
    rows = []
    for model, a, b in _pairs(laboratory.extent.pairs, 40, 3):
        mobility = model.effective_mobility(a.points, a, 0.0)
        plain = optimal_plan(sphere.distance_matrix(a.points, b.points) ** 2, a.weights, b.weights)
        ratio = weighted_distance(a, b, model, 0.0) ** 2 / plain.cost
        norm = float(model.heads(0.0).norms.max())
        rows.append((float(mobility.min()), ratio, float(mobility.max()), norm))
    return _study(rows)


def _mobilities(model: AttentionModel, mass: Array, nodes: Array) -> Array:
    """Mobility of a moving measure at its own atoms, at the midpoints of its segments."""
    middles = sphere.midpoint(nodes[:-1], nodes[1:])
    clouds = [TokenCloud(points, mass / mass.sum()) for points in middles]
    return np.array([model.effective_mobility(c.points, c, 0.0) for c in clouds])


@measured
def dynamic_study(laboratory: Laboratory) -> BoundStudy:
    """The dynamic distance; least mobility along its path, largest along the plain geodesic."""
    rows = []
    segments = laboratory.extent.segments
    fractions = np.linspace(0, 1, segments + 1)[:, None, None]
    for model, a, b in _pairs(max(3, laboratory.extent.pairs // 8), 10, 4):
        found = dynamic_distance(a, b, model, 0.0, segments=segments)
        squared = sphere.distance_matrix(a.points, b.points) ** 2
        plain = optimal_plan(squared, a.weights, b.weights)
        i, j = plain.plan.coords
        start = a.points[i]
        geodesic = sphere.exp(start, fractions * any_log(start, b.points[j]))
        low = _mobilities(model, found.mass, found.paths).min()
        high = _mobilities(model, np.asarray(plain.plan.data), geodesic).max()
        norm = float(model.heads(0.0).norms.max())
        rows.append((float(low), found.value**2 / plain.cost, float(high), norm))
    return _study(rows)


def _bounds_claim(study: BoundStudy, key: str, claim: str, tolerance: float) -> Claim:
    return Claim(
        key=key,
        claim=claim,
        measured=(
            f"{study.ratio.size} pairs: W²/W₂² from {study.ratio.min():.3g} to "
            f"{study.ratio.max():.3g}, m from {study.lower.min():.3g}, M to "
            f"{study.upper.max():.3g}; "
            f"bounds m, M missed by at least {study.slack:.2g}, bounds exp(±max|D|) by "
            f"{study.prior_slack:.2g} (relative)"
        ),
        expected=f"no bound crossed (tolerance {short(tolerance)})",
        holds=study.slack >= -tolerance and study.prior_slack >= -tolerance,
        how_known="theorem, measured constants",
        numbers={
            "smallest_ratio": float(study.ratio.min()),
            "largest_ratio": float(study.ratio.max()),
            "slack": study.slack,
            "prior_slack": study.prior_slack,
        },
    )


def frozen_bounds(laboratory: Laboratory) -> Claim:
    """The frozen weighted distance is equivalent to the plain one, m W2^2 <= W^2 <= M W2^2."""
    return _bounds_claim(
        frozen_study(laboratory),
        "frozen_bounds",
        "Frozen weighted distance: m W₂² ≤ W² ≤ M W₂², m and M the extremes of the mobility "
        "over the source tokens.",
        FROZEN_TOLERANCE,
    )


def dynamic_bounds(laboratory: Laboratory) -> Claim:
    """The dynamic weighted distance is equivalent to the plain one."""
    return _bounds_claim(
        dynamic_study(laboratory),
        "dynamic_bounds",
        "Dynamic weighted distance: m W₂² ≤ W² ≤ M W₂², m and M the extremes of the mobility "
        "along its own path and along the plain geodesic.",
        DYNAMIC_TOLERANCE,
    )
