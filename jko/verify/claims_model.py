"""Claims about the model: bounds of the mobility, gradient of the energy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import sphere
from ..attention.heads import Heads
from ..attention.model import AttentionModel
from ..measures import TokenCloud
from .card import Claim, short
from .laboratory import Laboratory, measured

__all__ = ["energy_gradient", "harmonic_mean", "mobility_bounds"]

Array = NDArray[np.float64]

#: Relative rounding allowed in inequalities between mobilities.
ROUNDING = 1e-13

SLOPE_TOLERANCE = 0.02


@dataclass(frozen=True, kw_only=True, eq=False)
class MobilityStudy:
    """Mobilities at many points for many problems.

    Attributes
    ----------
    lower, upper : (m,)
        Slacks ``log m + max|D|`` and ``max|D| - log M`` of every problem; not negative.
    ratio : (m,)
        Largest ratio of effective mobility to arithmetic mean; at most one.
    single_ratio : float
        Largest deviation of that ratio from one where H = 1.
    norms : (m,)
        ``max_h |D_h|``.
    points : int
    """

    lower: Array
    upper: Array
    ratio: Array
    single_ratio: float
    norms: Array
    points: int


def _random_problems(count: int) -> Iterator[tuple[AttentionModel, TokenCloud]]:
    rng = np.random.default_rng(1)
    for index in range(count):
        dim, heads = (2, 3, 3, 5, 10)[index % 5], (1, 3, 10)[index % 3]
        matrices = Heads.gaussian(heads, dim, rng)
        scale = float(rng.choice([0.1, 1.0, 3.0]))
        weights = rng.dirichlet(np.ones(heads))
        model = AttentionModel(Heads(scale * matrices.matrices, weights))
        n = int(rng.integers(1, 60))
        cloud = TokenCloud(TokenCloud.uniform(n, dim, rng).points, rng.dirichlet(np.ones(n)))
        yield model, cloud


def sample_points(cloud: TokenCloud, count: int) -> Array:
    """Nodes of the whole sphere (random directions for d >= 4), and the tokens themselves."""
    dim = cloud.dim
    nodes = sphere.nodes(count, dim) if dim <= 3 else TokenCloud.uniform(count, dim, dim).points
    return np.concatenate([nodes, cloud.points])


@measured
def mobility_study(laboratory: Laboratory) -> MobilityStudy:
    """Mobilities of random problems at nodes of the whole sphere and at the tokens."""
    lower, upper, ratio, norms, single, points = [], [], [], [], 0.0, 0
    for model, cloud in _random_problems(laboratory.extent.problems):
        at = sample_points(cloud, 1000)
        fields = model.fields(at, cloud, 0.0, 0)
        norm = float(fields.heads.norms.max())
        logs = fields.log_effective_mobility
        arithmetic = fields.heads.weights @ fields.head_mobility
        quotient = fields.effective_mobility / arithmetic
        lower.append(float(logs.min()) + norm)
        upper.append(norm - float(logs.max()))
        ratio.append(float(quotient.max()))
        norms.append(norm)
        points += at.shape[0]
        if fields.heads.count == 1:
            single = max(single, float(np.abs(quotient - 1).max()))
    return MobilityStudy(
        lower=np.array(lower),
        upper=np.array(upper),
        ratio=np.array(ratio),
        single_ratio=single,
        norms=np.array(norms),
        points=points,
    )


def mobility_bounds(laboratory: Laboratory) -> Claim:
    """The effective mobility lies between exp(-max|D|) and exp(max|D|)."""
    study = mobility_study(laboratory)
    low, high = float(study.lower.min()), float(study.upper.min())
    slack = ROUNDING * max(1.0, float(study.norms.max()))
    return Claim(
        key="mobility_bounds",
        claim="exp(−max|D|) ≤ effective mobility ≤ exp(max|D|), everywhere on the sphere.",
        measured=(
            f"{study.lower.size} problems, {study.points} points, max|D| {study.norms.min():.2g} "
            "to "
            f"{study.norms.max():.2g}: log b̂ at least {low:.2g} above the lower bound and "
            f"{high:.2g} below the upper one"
        ),
        expected=f"no bound crossed (rounding {short(slack)})",
        holds=low >= -slack and high >= -slack,
        how_known="theorem, checked at nodes of the sphere",
        numbers={"lower_slack": low, "upper_slack": high, "points": study.points},
    )


def harmonic_mean(laboratory: Laboratory) -> Claim:
    """The effective mobility is at most the arithmetic mean of the head mobilities."""
    study = mobility_study(laboratory)
    worst = float(study.ratio.max())
    return Claim(
        key="harmonic_mean",
        claim="The effective mobility, a harmonic mean over heads, is at most the arithmetic mean.",
        measured=(
            f"largest ratio - 1 over {study.points} points {short(worst - 1, 1)}; "
            f"|ratio - 1| for one head at most {short(study.single_ratio, 1)}"
        ),
        expected=f"ratio at most 1, and 1 for one head (rounding {short(ROUNDING)})",
        holds=worst <= 1 + ROUNDING and study.single_ratio <= ROUNDING,
        how_known="theorem, checked at nodes of the sphere",
        numbers={"largest_ratio": worst, "single_head_deviation": study.single_ratio},
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class TaylorStudy:
    """Taylor remainders of the energy along geodesic moves of all tokens.

    Attributes
    ----------
    sizes : (m,)
    remainders : dict of str to (m,)
        By case.
    control : (m,)
        The same for a gradient that is 1 % too long: what a wrong gradient looks like.
    """

    sizes: Array
    remainders: dict[str, Array]
    control: Array


def observed_slope(sizes: Array, values: Array) -> float:
    """Least-squares slope on a log-log plot."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def _remainders(
    model: AttentionModel, cloud: TokenCloud, t: float, sizes: Array, factor: float
) -> Array:
    rng = np.random.default_rng(2)
    direction = sphere.project(cloud.points, rng.standard_normal(cloud.points.shape))
    direction /= np.sqrt(cloud.weights @ np.einsum("nd,nd->n", direction, direction))
    gradient = model.gradient(cloud.points, cloud, t)
    slope = factor * float(cloud.weights @ np.einsum("nd,nd->n", gradient, direction))
    start = model.energy(cloud, t)
    moved = [TokenCloud(sphere.exp(cloud.points, s * direction), cloud.weights) for s in sizes]
    change = np.array([model.energy(there, t) - start for there in moved])
    return np.abs(change - sizes * slope)


@measured
def taylor_study(laboratory: Laboratory) -> TaylorStudy:
    """Remainders for every reference case, at a third of its horizon."""
    sizes = np.geomspace(3e-3, 1e-5, 10)
    remainders, control = {}, np.empty(0)
    for name in laboratory.extent.cases:
        case = laboratory.case(name)
        arguments = case.model, case.cloud, case.horizon / 3, sizes
        remainders[name] = _remainders(*arguments, 1.0)
        control = _remainders(*arguments, 1.01)
    return TaylorStudy(sizes=sizes, remainders=remainders, control=control)


def energy_gradient(laboratory: Laboratory) -> Claim:
    """The gradient of the energy is right: Taylor remainders fall with slope 2."""
    study = taylor_study(laboratory)
    slopes = {name: observed_slope(study.sizes, r) for name, r in study.remainders.items()}
    low, high = min(slopes.values()), max(slopes.values())
    wrong = observed_slope(study.sizes, study.control)
    return Claim(
        key="energy_gradient",
        claim="The gradient of the energy agrees with finite differences.",
        measured=(
            f"slope of the Taylor remainder {low:.4f} to {high:.4f} over {len(slopes)} cases, "
            "moves "
            f"1e−5 to 3e−3 rad (a gradient off by 1 % has slope {wrong:.2f})"
        ),
        expected=f"2.00 ± {SLOPE_TOLERANCE:g}",
        holds=all(abs(slope - 2) <= SLOPE_TOLERANCE for slope in slopes.values()),
        how_known="Taylor's theorem, measured order",
        numbers={f"slope_{name}": slope for name, slope in slopes.items()}
        | {"slope_wrong_gradient": wrong},
    )
