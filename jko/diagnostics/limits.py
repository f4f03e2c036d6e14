r"""Limits: many heads, long times, and the power laws by which they are approached.

For the Ornstein-Uhlenbeck law started from ``Z + Z^T`` the limit of infinitely many heads is
explicit.  At time ``t`` a head is :math:`D = m_t I + s_t S` with ``S = (Z + Z^T)/2`` standard and

.. math::

    m_t = 1 - e^{-t}, \qquad s_t^2 = 4 e^{-2t} + \tfrac{\sigma^2}{2}(1 - e^{-2t}), \qquad
    \mathbb E\, e^{\langle x, D y\rangle} = k_t(\langle x, y\rangle), \quad
    k_t(c) = \exp\!\big(m_t c + \tfrac{s_t^2}{4}(1 + c^2)\big),

because :math:`\langle x, S y\rangle` is Gaussian of variance :math:`(1 + \langle x, y\rangle^2)/2`.  Energy, first variation
and gradient follow; the mobility needs :math:`\mathbb E[1/b]` and is sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import connected_components

from .. import sphere
from .._validation import choice, positive_integer, positive_number
from ..attention.heads import Heads
from ..attention.model import AttentionModel
from ..attention.weights import FromFunction, Frozen, OrnsteinUhlenbeck, Oscillating, WeightPath
from ..measures import TokenCloud
from ..runs.curve import Curve
from ..transport.distance import wasserstein

__all__ = [
    "LateTimes",
    "ManyHeads",
    "PowerLaw",
    "article_model",
    "cluster_count",
    "decaying_path",
    "fit_power_law",
    "fit_power_law_groups",
    "late_times",
    "time_average",
]

Array = NDArray[np.float64]
Rng = np.random.Generator | int | None

REGIMES = ("ornstein-uhlenbeck", "oscillating", "decaying", "frozen")

#: Resamples of a bootstrap interval.
RESAMPLES = 2000


def article_model(
    regime: str,
    heads: int,
    dim: int = 3,
    horizon: float = 20.0,
    rng: Rng = None,
    sign: int = 1,
) -> AttentionModel:
    r"""The article's models: initial heads ``Z + Z^T`` and one of four weight paths.

    Parameters
    ----------
    regime : {"ornstein-uhlenbeck", "oscillating", "decaying", "frozen"}
        ``"decaying"``: :math:`D_h(t) = D_h^\infty + e^{-t} D_h^1` with two independent draws.
    heads, dim : int
    horizon : float
        Of the sampled paths.
    rng : numpy Generator, int or None
    sign : {+1, -1}
    """
    choice(regime, "regime", REGIMES)
    rng = np.random.default_rng(rng)
    start = Heads.gaussian(heads, dim, rng)
    path: WeightPath
    if regime == "ornstein-uhlenbeck":
        path = OrnsteinUhlenbeck(start, horizon=horizon, rng=rng)
    elif regime == "oscillating":
        path = Oscillating(start)
    elif regime == "decaying":
        path = decaying_path(Heads.gaussian(heads, dim, rng), start.matrices)
    else:
        path = Frozen(start)
    return AttentionModel(path, sign)


@dataclass(frozen=True, eq=False)
class _Decay:
    """``base + exp(-rate t) direction`` with its derivative; a picklable function object."""

    base: Array
    direction: Array
    weights: Array
    rate: float

    def __call__(self, t: float) -> Heads:
        return Heads(self.base + np.exp(-self.rate * t) * self.direction, self.weights)

    def derivative(self, t: float) -> Array:
        result: Array = -self.rate * np.exp(-self.rate * t) * self.direction
        return result


def decaying_path(limit: Heads, deviation: ArrayLike, rate: float = 1.0) -> FromFunction:
    r"""The integrable path :math:`D_h(t) = D_h^\infty + e^{-\lambda t} D_h^1`, of known limit."""
    direction = Heads(deviation).matrices
    if direction.shape != limit.matrices.shape:
        raise ValueError(
            f"deviation must have shape {limit.matrices.shape}, got {direction.shape}"
        )
    path = _Decay(limit.matrices, direction, limit.weights, positive_number(rate, "rate"))
    return FromFunction(path, path.derivative)


@dataclass(frozen=True, kw_only=True)
class ManyHeads:
    r"""The Ornstein-Uhlenbeck model with infinitely many heads.

    Attributes
    ----------
    dim : int
        Dimension d.
    variance : float
        :math:`\sigma^2` of the noise.
    """

    dim: int = 3
    variance: float = 2.0

    def mean(self, t: float) -> float:
        """``m_t``: the heads have mean ``m_t I``."""
        return float(-np.expm1(-t))

    def spread(self, t: float) -> float:
        """``s_t``: standard deviation of the diagonal entries (off it, divided by sqrt 2)."""
        decay = np.exp(-2 * t)
        return float(np.sqrt(4 * decay + self.variance / 2 * (1 - decay)))

    def wasserstein_speed(self, t: float) -> float:
        r"""Speed of the Gaussian law in :math:`W_2` (Frobenius norm of matrices).

        :math:`\sqrt{d\,\dot m_t^2 + \tfrac{d(d+1)}{2}\dot s_t^2}`: the laws are translates of multiples of each
        other, so the affine map between them is optimal.
        """
        mean_rate = np.exp(-t)
        spread_rate = (self.variance / 2 - 4) * np.exp(-2 * t) / self.spread(t)
        squared = self.dim * mean_rate**2 + self.dim * (self.dim + 1) / 2 * spread_rate**2
        return float(np.sqrt(squared))

    def path(self, count: int, rng: Rng = None) -> FromFunction:
        """A smooth path of ``count`` heads that has this law at every time.

        The standard matrices are drawn once, in antithetic pairs, and moved with the law: same
        law as the Ornstein-Uhlenbeck heads, no noise in time.
        """
        half = -(-positive_integer(count, "count") // 2)
        z = np.random.default_rng(rng).standard_normal((half, self.dim, self.dim))
        standard = (z + z.transpose(0, 2, 1)) / 2
        paired = np.concatenate([standard, -standard])[:count]
        return FromFunction(_Transported(self, paired))

    def kernel(self, cosine: ArrayLike, t: float) -> Array:
        """``k_t(c)``, the mean of ``exp<x, D y>`` over heads at ``<x, y> = c``."""
        c = np.asarray(cosine, dtype=float)
        kernel: Array = np.exp(self.mean(t) * c + self.spread(t) ** 2 * (1 + c * c) / 4)
        return kernel

    def first_variation(self, at: ArrayLike, cloud: TokenCloud, t: float) -> Array:
        """``V = int k_t(<x, y>) dmu(y)`` at the points ``at``: shape (m,)."""
        cosine = np.asarray(at, dtype=float) @ cloud.points.T
        values: Array = self.kernel(cosine, t) @ cloud.weights
        return values

    def energy(self, cloud: TokenCloud, t: float) -> float:
        """``E = 1/2 iint k_t dmu dmu``."""
        return float(0.5 * cloud.weights @ self.first_variation(cloud.points, cloud, t))

    def gradient(self, at: ArrayLike, cloud: TokenCloud, t: float) -> Array:
        """``p = P_x int k_t'(<x, y>) y dmu(y)``: shape (m, d)."""
        points = np.asarray(at, dtype=float)
        cosine = points @ cloud.points.T
        slope = (self.mean(t) + self.spread(t) ** 2 * cosine / 2) * self.kernel(cosine, t)
        return sphere.project(points, slope @ (cloud.weights[:, None] * cloud.points))

    def slope_squared(
        self, cloud: TokenCloud, t: float, samples: int = 1000, rng: Rng = None
    ) -> float:
        r""":math:`G^2 = \int |p|^2\, \mathbb E[1/b]\, d\mu`, the mean of ``1/b`` sampled."""
        model = AttentionModel(self.path(samples, rng)(t))
        p = self.gradient(cloud.points, cloud, t)
        mobility = model.effective_mobility(cloud.points, cloud, t)
        return float(cloud.weights @ (np.einsum("nd,nd->n", p, p) / mobility))


@dataclass(frozen=True, eq=False)
class _Transported:
    """``m_t I + s_t S_h`` for fixed standard matrices ``S_h``; picklable."""

    law: ManyHeads
    standard: Array

    def __call__(self, t: float) -> Heads:
        return Heads(self.law.mean(t) * np.eye(self.law.dim) + self.law.spread(t) * self.standard)


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """A fit ``y = prefactor * x^exponent``, with a 95 % interval of the exponent."""

    exponent: float
    interval: tuple[float, float]
    prefactor: float

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.exponent:.2f} [{low:.2f}, {high:.2f}]"


def fit_power_law(x: ArrayLike, samples: ArrayLike, rng: Rng = 0) -> PowerLaw:
    r"""Fit :math:`y = c\,x^p` to the mean over samples, in logarithms, bootstrapped over samples.

    Parameters
    ----------
    x : (m,) array_like
        Positive.
    samples : (k, m) array_like
        Positive; rows are independent (paths, seeds).  With one row the interval is the point.

    Raises
    ------
    ValueError
        For other shapes, or values that are not positive.
    """
    x, y = np.asarray(x, dtype=float), np.atleast_2d(np.asarray(samples, dtype=float))
    if x.ndim != 1 or y.ndim != 2 or y.shape[1] != x.size or x.size < 2:
        raise ValueError(f"samples must have shape (k, {x.size}) and m >= 2, got {y.shape}")
    if not ((x > 0).all() and (y > 0).all()):
        raise ValueError("x and samples must be positive to be fitted by a power law")
    rng = np.random.default_rng(rng)
    chosen = rng.integers(0, y.shape[0], (RESAMPLES, y.shape[0]))
    return _power_law(x, np.vstack([y.mean(axis=0), y[chosen].mean(axis=1)]))


def fit_power_law_groups(x: ArrayLike, groups: Sequence[ArrayLike], rng: Rng = 0) -> PowerLaw:
    r"""The fit of `fit_power_law`, :math:`y \approx C x^p`, where every ``x`` has its own samples.

    Parameters
    ----------
    x : (m,) array_like
        Positive.
    groups : sequence of m array_like
        Positive samples of ``y`` at every ``x``, independent and resampled on their own.

    Raises
    ------
    ValueError
        For other shapes, or values that are not positive.
    """
    x = np.asarray(x, dtype=float)
    samples = [np.asarray(group, dtype=float) for group in groups]
    if x.ndim != 1 or x.size < 2 or len(samples) != x.size:
        raise ValueError(f"groups must be {x.size} and at least 2, got {len(samples)}")
    for index, group in enumerate(samples):
        if group.ndim != 1 or group.size == 0:
            raise ValueError(f"groups[{index}] must be 1-d and not empty, got {group.shape}")
    if not ((x > 0).all() and all((group > 0).all() for group in samples)):
        raise ValueError("x and groups must be positive to be fitted by a power law")
    rng = np.random.default_rng(rng)
    means = [
        np.concatenate([[group.mean()], rng.choice(group, (RESAMPLES, group.size)).mean(axis=1)])
        for group in samples
    ]
    return _power_law(x, np.stack(means, axis=1))


def _power_law(x: Array, means: Array) -> PowerLaw:
    """The law of the first row of ``means``, with the interval of the others' exponents."""
    slopes, constants = np.polyfit(np.log(x), np.log(means).T, 1)
    low, high = np.quantile(slopes[1:], (0.025, 0.975))
    return PowerLaw(
        exponent=float(slopes[0]),
        interval=(float(low), float(high)),
        prefactor=float(np.exp(constants[0])),
    )


def time_average(curve: Curve, quantity: str, start: float, end: float) -> float:
    r"""Mean :math:`\frac{1}{T - s}\int_s^T q\,dt` of a quantity whose integral the flow ``curve`` carries.

    Raises
    ------
    ValueError
        If the curve carries no such integral, or ``start`` and ``end`` are not among its times.
    """
    choice(quantity, "quantity", tuple(curve.integrals))
    index = [int(np.argmin(np.abs(curve.times - t))) for t in (start, end)]
    slack = 1e-9 * max(1.0, float(np.abs(curve.times).max()))
    for name, t, k in zip(("start", "end"), (start, end), index, strict=True):
        if abs(curve.times[k] - t) > slack:
            raise ValueError(f"{name} must be one of the times of the curve, got {t}")
    if index[0] >= index[1]:
        raise ValueError(f"end must be later than start, got {start} and {end}")
    values = curve.integrals[quantity]
    return float((values[index[1]] - values[index[0]]) / (end - start))


def cluster_count(cloud: TokenCloud, radius: float) -> int:
    r"""Number of clusters: classes of tokens linked by chains of gaps :math:`d(x_i, x_j) \le` ``radius``.

    Tokens of weight zero are left out.
    """
    radius = positive_number(radius, "radius")
    points = cloud.points[cloud.weights > 0]
    linked = sphere.distance_matrix(points, points) <= radius
    return int(connected_components(linked, directed=False)[0])


@dataclass(frozen=True, kw_only=True)
class LateTimes:
    r"""What a flow does at the end of a long run: :math:`G^2`, its averages, and whether it still moves.

    Attributes
    ----------
    slope_squared : float
        ``G^2`` at the final time: zero iff the final cloud is stationary for the energy.
    mean_slope_squared, mean_speed_squared : float
        Time averages over the window.
    largest_distance : float
        Largest Wasserstein distance, in radians, from the final cloud to those of the window.
    clusters : tuple of int
        Number of clusters at the kept times of the window.
    """

    slope_squared: float
    mean_slope_squared: float
    mean_speed_squared: float
    largest_distance: float
    clusters: tuple[int, ...]


def late_times(curve: Curve, start: float, radius: float = 0.1) -> LateTimes:
    r"""Summary of the kept times :math:`t_k \ge` ``start`` (one of them) of a flow.

    Raises
    ------
    ValueError
        If the curve carries no model or no integrals, or ``start`` is none of its times.
    """
    if curve.model is None:
        raise ValueError("curve.model is None: the slope needs the weight path")
    end = float(curve.times[-1])
    # a difference of integrals may be negative by rounding where the flow rests
    averages = {
        name: max(0.0, time_average(curve, name, start, end))
        for name in ("slope_squared", "metric_speed_squared")
    }
    window = [k for k in range(curve.times.size) if curve.times[k] >= start - 1e-9]
    return LateTimes(
        slope_squared=curve.model.slope_squared(curve.final, end),
        mean_slope_squared=averages["slope_squared"],
        mean_speed_squared=averages["metric_speed_squared"],
        largest_distance=max(wasserstein(curve.cloud(k), curve.final) for k in window),
        clusters=tuple(cluster_count(curve.cloud(k), radius) for k in window),
    )
