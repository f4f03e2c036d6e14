r"""Stability of the flows: in the initial cloud, in the heads, and in the number of tokens.

*Initial cloud (Gronwall).*  Couple two clouds optimally and let the coupled pairs move.  If the
velocity is one-sided Lipschitz in the point with constant :math:`L_x` and Lipschitz in the measure,
:math:`|v[\mu](x) - v[\nu](x)| \le L_\mu W_2(\mu, \nu)`, then

.. math:: W_2(\mu_t, \nu_t) \le W_2(\mu_0, \nu_0) \exp\int_0^t (L_x + L_\mu)\, ds .

With :math:`r_h = |D_h|`, :math:`\ell_h = r_h e^{r_h}` (a bound of the change of :math:`\log b_h`),
:math:`g_h = (1 + r_h)\ell_h` (of its gradient), :math:`c_h = r_h` for sign +1 and :math:`r_h + r_h^2` for sign -1
(of the Hessian of :math:`\mp\log b_h`), and :math:`\rho_{hk} = e^{r_h + r_k} \ge b_h/b_k` (one for h = k),

.. math::

    \text{softmax:}\quad & L_x + L_\mu \le \sum_h w_h (c_h + g_h), \\
    \text{gradient:}\quad & L_x + L_\mu \le \sum_{hk} w_h w_k \rho_{hk}\big[c_h + g_h
        + 1_{h \ne k}\, r_h (r_h + r_k + \ell_h + \ell_k)\big].

The derivation is in ``docs/article.md``.  For one head both agree.

*Heads.*  Energies, least energies, flows and minimizing movements of perturbed heads, as the
perturbation shrinks.  *Tokens.*  Distance of flows of sampled clouds to a fine one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from .. import sphere
from .._validation import choice, finite_array
from ..attention.heads import Heads
from ..attention.model import VELOCITIES, AttentionModel
from ..attention.weights import FromFunction, WeightPath
from ..measures import TokenCloud
from ..runs.flow import particle_flow
from ..runs.movement import minimizing_movement
from ..transport.distance import wasserstein

__all__ = [
    "EnergyGap",
    "GrowthStudy",
    "LeastEnergy",
    "a_priori_rate",
    "energy_gap",
    "flow_gaps",
    "growth_study",
    "least_energy",
    "movement_gaps",
    "perturbed_cloud",
    "sampling_gaps",
    "weight_decay",
]

Array = NDArray[np.float64]
Rng = np.random.Generator | int | None

#: Distances below this are errors of the integrator: clouds that merged have no growth rate.
FLOOR = 1e-8

#: Gauss-Legendre nodes between two times, for the integral of the a-priori rate.
NODES = 8


def a_priori_rate(heads: Heads, velocity: str = "gradient", sign: int = 1) -> float:
    """The Gronwall constant ``L_x + L_mu`` of the module's formula, for fixed heads."""
    choice(velocity, "velocity", VELOCITIES)
    r, w = heads.norms, heads.weights
    curvature = r if sign == 1 else r + r**2
    change = r * np.exp(r)
    own = curvature + (1 + r) * change
    if velocity == "softmax":
        return float(w @ own)
    ratio = np.exp(r[:, None] + r[None])
    np.fill_diagonal(ratio, 1.0)
    cross = r[:, None] * (r[:, None] + r[None] + change[:, None] + change[None])
    np.fill_diagonal(cross, 0.0)
    return float(w @ (ratio * (own[:, None] + cross)) @ w)


def perturbed_cloud(cloud: TokenCloud, size: float, rng: Rng = None) -> TokenCloud:
    r"""Tokens moved along Gaussian tangent vectors; :math:`(\sum_i a_i d(x_i, x'_i)^2)^{1/2}` is ``size``."""
    rng = np.random.default_rng(rng)
    direction = sphere.project(cloud.points, rng.standard_normal(cloud.points.shape))
    scale = np.sqrt(cloud.weights @ np.einsum("nd,nd->n", direction, direction))
    return TokenCloud(sphere.exp(cloud.points, size / scale * direction), cloud.weights)


@dataclass(frozen=True, kw_only=True, eq=False)
class GrowthStudy:
    r"""Distances between a flow and flows from perturbed initial clouds.

    Attributes
    ----------
    times : (K+1,)
    sizes : (m,)
        Labelled sizes of the perturbations, in radians.
    distances : (m, K+1)
        :math:`W_2(\mu_t, \nu_t)` in radians.
    exponent : (K+1,)
        :math:`\int_0^t (L_x + L_\mu) ds`: the a-priori bound of ``log(distance / initial distance)``.
    """

    times: Array
    sizes: Array
    distances: Array
    exponent: Array

    @property
    def _logs(self) -> Array:
        return np.log(np.maximum(self.distances, FLOOR))

    @property
    def growth(self) -> Array:
        """Largest ``log(W_2(t) / W_2(0)) / t`` over the times, for every size: (m,)."""
        logs = self._logs[:, 1:] - self._logs[:, :1]
        return (logs / (self.times[1:] - self.times[0])).max(axis=1)

    @property
    def steepest(self) -> Array:
        """Largest growth rate between consecutive times, for every size: (m,)."""
        rates = np.diff(self._logs, axis=1) / np.diff(self.times)
        return rates.max(axis=1)

    @property
    def a_priori(self) -> float:
        """Mean of the a-priori constant over the span."""
        return float(self.exponent[-1] / (self.times[-1] - self.times[0]))

    @property
    def slack(self) -> float:
        """Least ``exponent - log(W_2(t)/W_2(0))`` over times and sizes; negative if broken."""
        logs = self._logs[:, 1:] - self._logs[:, :1]
        return float((self.exponent[1:] - logs).min())


def growth_study(
    model: AttentionModel,
    cloud: TokenCloud,
    times: ArrayLike,
    sizes: Sequence[float],
    velocity: str = "gradient",
    rng: Rng = 0,
    rtol: float = 1e-9,
) -> GrowthStudy:
    r"""Growth of :math:`W_2(\mu_t, \mu^\delta_t)` for perturbations of ``cloud``, over ``times`` (the first is the start)."""
    times = finite_array(times, "times", 1)
    rng = np.random.default_rng(rng)
    span = (float(times[0]), float(times[-1]))

    def flow(start: TokenCloud) -> list[TokenCloud]:
        curve = particle_flow(model, start, span, velocity, rtol=rtol, t_eval=times)
        return [curve.cloud(k) for k in range(curve.times.size)]

    base = flow(cloud)
    distances = [
        [wasserstein(a, b) for a, b in zip(base, flow(start), strict=True)]
        for start in (perturbed_cloud(cloud, size, rng) for size in sizes)
    ]
    return GrowthStudy(
        times=times,
        sizes=np.array(sizes, dtype=float),
        distances=np.array(distances),
        exponent=_integrated_rate(model, times, velocity),
    )


def _integrated_rate(model: AttentionModel, times: Array, velocity: str) -> Array:
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    pieces = [0.0]
    for left, right in zip(times[:-1].tolist(), times[1:].tolist(), strict=True):
        half = (right - left) / 2
        rates = [
            a_priori_rate(model.path(left + half * (1 + float(x))), velocity, model.sign)
            for x in nodes
        ]
        pieces.append(half * float(weights @ np.array(rates)))
    return np.cumsum(pieces)


@dataclass(frozen=True, kw_only=True)
class EnergyGap:
    """Distance of two energies, uniform over all probability measures on the sphere.

    Attributes
    ----------
    attained : float
        The largest ``|E - E'|`` found, over Dirac masses and given clouds: a lower bound.
    bound : float
        Half the largest difference of the kernels on the nodes: an upper bound, up to the
        resolution of the nodes.
    """

    attained: float
    bound: float


def energy_gap(
    first: AttentionModel,
    second: AttentionModel,
    t: float,
    nodes: ArrayLike,
    clouds: Sequence[TokenCloud] = (),
) -> EnergyGap:
    r"""Bracket of :math:`\sup_\mu |E(\mu) - E'(\mu)|`, with kernels compared on ``nodes`` (m, d)."""
    points = finite_array(nodes, "nodes", 2)
    gap = np.abs(_kernel_matrix(first, t, points) - _kernel_matrix(second, t, points))
    probes = [abs(first.energy(cloud, t) - second.energy(cloud, t)) for cloud in clouds]
    diracs = float(np.diag(gap).max()) / 2
    return EnergyGap(attained=max([diracs, *probes]), bound=float(gap.max()) / 2)


def _kernel_matrix(model: AttentionModel, t: float, points: Array) -> Array:
    """``K = sum_h w_h exp(z D_h z^T)``, with the sign of the energy."""
    heads = model.path(t)
    scores = np.einsum("md,hde,ne->hmn", points, heads.matrices, points, optimize=True)
    total: Array = model.sign * np.einsum("h,hmn->mn", heads.weights, np.exp(scores))
    return total


@dataclass(frozen=True, kw_only=True, eq=False)
class LeastEnergy:
    r"""Least energy :math:`\min_{\mu\ on\ nodes} E(\mu, t)` over measures on given nodes.

    Attributes
    ----------
    energy : float
    weights : (m,)
        The minimiser.
    gap : float
        Frank-Wolfe gap: an upper bound of ``energy`` minus the least energy.
    """

    energy: float
    weights: Array
    gap: float


def least_energy(model: AttentionModel, t: float, nodes: ArrayLike) -> LeastEnergy:
    r"""Minimise :math:`\tfrac12\nu^T K\nu` over the simplex, for a convex energy.

    With ``K = L L^T`` the solution is proportional to that of the nonnegative least squares
    problem :math:`\min_{z \ge 0} |L^T z|^2 + (1 - \sum z)^2`.

    Raises
    ------
    ValueError
        If ``K`` is not positive semidefinite (sign -1, or indefinite heads).
    """
    points = finite_array(nodes, "nodes", 2)
    kernel = _kernel_matrix(model, t, points)
    values, vectors = np.linalg.eigh(kernel)
    if values[0] < -1e-10 * values[-1]:
        raise ValueError(
            f"the energy must be convex on the nodes: its kernel has eigenvalue {values[0]:.3g}"
        )
    kept = values > 1e-15 * values[-1]
    root = (vectors[:, kept] * np.sqrt(values[kept])).T
    scale = np.sqrt(kernel.mean())
    system = np.vstack([root / scale, np.ones(points.shape[0])])
    z, _ = nnls(system, np.append(np.zeros(root.shape[0]), 1.0), maxiter=100 * points.shape[0])
    weights = z / z.sum()
    potential = kernel @ weights
    return LeastEnergy(
        energy=float(weights @ potential) / 2,
        weights=weights,
        gap=float(weights @ potential - potential.min()),
    )


def flow_gaps(
    model: AttentionModel,
    perturbed: Sequence[AttentionModel],
    cloud: TokenCloud,
    horizon: float,
    velocity: str = "gradient",
    rtol: float = 1e-11,
) -> Array:
    r"""Distances :math:`W_2(\mu^\varepsilon_T, \mu_T)` of flows of ``perturbed`` models to that of ``model``, in radians."""

    def end(of: AttentionModel) -> TokenCloud:
        span = (0.0, horizon)
        return particle_flow(of, cloud, span, velocity, rtol=rtol, t_eval=[horizon]).final

    base = end(model)
    return np.array([wasserstein(base, end(other)) for other in perturbed])


def movement_gaps(
    model: AttentionModel,
    perturbed: Sequence[AttentionModel],
    cloud: TokenCloud,
    horizon: float,
    step: float,
) -> Array:
    r"""Distances :math:`W_2(\mu^{\varepsilon,\tau}_T, \mu^\tau_T)` of minimizing movements of a fixed ``step``."""

    def end(of: AttentionModel) -> TokenCloud:
        return minimizing_movement(of, cloud, (0.0, horizon), step, certify="local").final

    base = end(model)
    return np.array([wasserstein(base, end(other)) for other in perturbed])


@dataclass(frozen=True, eq=False)
class _Decayed:
    """``exp(-rate t) D(t)`` with its derivative; picklable if the path is."""

    path: WeightPath
    rate: float

    def __call__(self, t: float) -> Heads:
        heads = self.path(t)
        return Heads(np.exp(-self.rate * t) * heads.matrices, heads.weights)

    def derivative(self, t: float) -> Array:
        change = self.path.derivative(t) - self.rate * self.path(t).matrices
        result: Array = np.exp(-self.rate * t) * change
        return result


def weight_decay(path: WeightPath, rate: float) -> FromFunction:
    r"""The path under weight decay, :math:`e^{-\lambda t} D_h(t)`: a perturbation of order ``rate``.

    For paths without kinks.
    """
    decayed = _Decayed(path, rate)
    return FromFunction(decayed, decayed.derivative)


def sampling_gaps(
    model: AttentionModel,
    reference: TokenCloud,
    samples: Sequence[TokenCloud],
    horizon: float,
    velocity: str = "gradient",
    rtol: float = 1e-7,
) -> tuple[Array, Array]:
    r"""Distances :math:`W_2(\mu^n_t, \mu_t)` of sampled clouds to a fine ``reference``, at 0 and ``horizon``."""

    def end(cloud: TokenCloud) -> TokenCloud:
        span = (0.0, horizon)
        return particle_flow(model, cloud, span, velocity, rtol=rtol, t_eval=[horizon]).final

    last = end(reference)
    before = np.array([wasserstein(cloud, reference) for cloud in samples])
    after = np.array([wasserstein(end(cloud), last) for cloud in samples])
    return before, after
