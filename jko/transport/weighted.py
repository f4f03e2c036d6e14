r"""The weighted Wasserstein distance of multi-head attention.

.. math::

    W(\mu_0, \mu_1; \Theta)^2 = \inf \int_0^1\!\!\int \hat b_s\,|v_s|^2 d\mu_s\, ds, \qquad
    \partial_s\mu_s + \mathrm{div}(\mu_s v_s) = 0,

with :math:`\hat b_s` the effective mobility of ``mu_s`` itself.  ``"frozen"`` takes the mobility of the first
measure at the source points (the cost of a JKO step); ``"dynamic"`` discretises the formula above:
every atom of a plan has its own path of ``N`` geodesic segments with free nodes, and

.. math::

    W^2 \approx N \sum_{s=1}^N \sum_k \pi_k\, \hat b(m_{k,s}; \mu^{mid}_s)\, d(z_{k,s-1}, z_{k,s})^2,

``m`` the midpoints of the segments and :math:`\mu^{mid}_s = \sum_k \pi_k \delta_{m_{k,s}}` their own measure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize
from scipy.sparse import coo_array

from .. import sphere
from .._validation import choice, finite_number, positive_integer
from ..attention.fields import Fields
from ..attention.model import AttentionModel
from ..measures import TokenCloud
from .cost import SourceCost, any_log
from .distance import require_same_dimension
from .plan import optimal_plan, require_fits

__all__ = ["DynamicDistance", "dynamic_distance", "weighted_distance"]

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

METHODS = ("frozen", "dynamic")
SEGMENTS = 8
PLAN_UPDATES = 6


@dataclass(frozen=True, kw_only=True, eq=False)
class DynamicDistance:
    r"""A discrete action-minimising path of plan atoms, :math:`W^2 \approx N \sum_{s,k} \pi_k \hat b\, d(z_{k,s-1}, z_{k,s})^2`.

    Attributes
    ----------
    value : float
        The distance.
    rows, columns, mass : (K,)
        Plan atoms.
    paths : (N+1, K, d)
        Path of every atom.
    action_first : float
        Action of the constant-speed geodesics of the first plan, an upper bound.
    plan_updates : int
        How often a better plan was found.
    gradient_norm : float
        Norm of the action's gradient at the end, relative to the action.
    """

    value: float
    rows: IntArray
    columns: IntArray
    mass: Array
    paths: Array
    action_first: float
    plan_updates: int
    gradient_norm: float


def weighted_distance(
    cloud_a: TokenCloud,
    cloud_b: TokenCloud,
    model: AttentionModel,
    t: float,
    method: str = "frozen",
    *,
    symmetrize: bool = False,
    segments: int = SEGMENTS,
) -> float:
    r"""Weighted Wasserstein distance between two clouds for the heads at time ``t``.

    Parameters
    ----------
    cloud_a, cloud_b : TokenCloud
        Of any sizes and weights.
    model : AttentionModel
    t : float
    method : {"frozen", "dynamic"}
        ``"frozen"``: :math:`\min_\pi \sum \pi_{ij} \hat b(x_i; \mu_a) d(x_i, y_j)^2`, asymmetric.  ``"dynamic"``:
        discretised Benamou-Brenier with the mobility of the moving measure, symmetric up to
        the minimiser's tolerance.
    symmetrize : bool
        For ``"frozen"``: root mean square of both directions.
    segments : int
        Time intervals of ``"dynamic"``; its error is O(segments^-2).

    Returns
    -------
    float
        The distance (not squared).

    Raises
    ------
    ValueError
        For an unknown method, or clouds of different dimensions.
    """
    choice(method, "method", METHODS)
    finite_number(t, "t")
    require_same_dimension(cloud_a, cloud_b)
    positive_integer(segments, "segments")
    if method == "dynamic":
        return dynamic_distance(cloud_a, cloud_b, model, t, segments=segments).value
    squared = _frozen_squared(cloud_a, cloud_b, model, t)
    if symmetrize:
        squared = (squared + _frozen_squared(cloud_b, cloud_a, model, t)) / 2
    return float(np.sqrt(squared))


def _frozen_squared(a: TokenCloud, b: TokenCloud, model: AttentionModel, t: float) -> float:
    require_fits(a.n, b.n)
    cost = SourceCost(a.points, model.effective_mobility(a.points, a, t))
    return optimal_plan(cost.matrix(b.points), a.weights, b.weights).cost


def dynamic_distance(
    cloud_a: TokenCloud,
    cloud_b: TokenCloud,
    model: AttentionModel,
    t: float,
    *,
    segments: int = SEGMENTS,
    tolerance: float = 1e-9,
) -> DynamicDistance:
    r"""The dynamic distance with its path.

    Plan and paths alternate: the first plan comes from the symmetric cost
    :math:`\tfrac12(\hat b(x; \mu_a) + \hat b(y; \mu_b)) d^2`; then the paths are optimised for the plan, and the plan for
    the mobility field of the paths (geodesics at constant speed through it) as long as that
    lowers the action.
    """
    first = _symmetric_cost(cloud_a, cloud_b, model, t)
    best: _Path | None = None
    action_first, updates = 0.0, 0
    cost = first
    for attempt in range(PLAN_UPDATES + 1):
        plan = optimal_plan(cost, cloud_a.weights, cloud_b.weights).plan
        trial = _Path.optimised(cloud_a, cloud_b, plan, model, t, segments, tolerance)
        if best is None:
            best, action_first = trial, trial.initial_action
        elif trial.action < best.action * (1 - 1e-12):
            best, updates = trial, attempt
        else:
            break
        cost = best.field_cost(cloud_a, cloud_b)
    assert best is not None
    return DynamicDistance(
        value=float(np.sqrt(best.action)),
        rows=best.rows,
        columns=best.columns,
        mass=best.mass,
        paths=best.nodes,
        action_first=action_first,
        plan_updates=updates,
        gradient_norm=best.gradient_norm,
    )


def _symmetric_cost(a: TokenCloud, b: TokenCloud, model: AttentionModel, t: float) -> Array:
    left = model.effective_mobility(a.points, a, t)
    right = model.effective_mobility(b.points, b, t)
    squared = sphere.distance_matrix(a.points, b.points) ** 2
    cost: Array = (left[:, None] + right[None]) / 2 * squared
    return cost


@dataclass(frozen=True, kw_only=True, eq=False)
class _Path:
    """Paths of plan atoms and their action."""

    rows: IntArray
    columns: IntArray
    mass: Array
    nodes: Array
    action: float
    initial_action: float
    gradient_norm: float
    functional: _Action

    @classmethod
    def optimised(
        cls,
        a: TokenCloud,
        b: TokenCloud,
        plan: coo_array,
        model: AttentionModel,
        t: float,
        segments: int,
        tolerance: float,
    ) -> _Path:
        """Minimise the action over the free nodes, from constant-speed geodesics."""
        rows, columns = (np.asarray(k, dtype=np.intp) for k in plan.coords)
        mass = np.asarray(plan.data)
        start, end = a.points[rows], b.points[columns]
        fractions = np.linspace(0, 1, segments + 1)[:, None, None]
        nodes = sphere.exp(start, fractions * any_log(start, end))
        nodes[-1] = end
        functional = _Action(model, t, mass)
        initial, gradient = functional(nodes)
        if segments > 1 and initial > 0:
            nodes, gradient = functional.minimise(nodes, tolerance)
        action = functional(nodes)[0]
        return cls(
            rows=rows,
            columns=columns,
            mass=mass,
            nodes=nodes,
            action=action,
            initial_action=initial,
            gradient_norm=float(np.linalg.norm(gradient[1:-1])) / action if action > 0 else 0.0,
            functional=functional,
        )

    def field_cost(self, a: TokenCloud, b: TokenCloud) -> Array:
        r"""``(mean_s sqrt(bhat_s))^2 d^2``: cheapest parametrisation of each geodesic in the field."""
        segments = self.nodes.shape[0] - 1
        pairs_x = np.repeat(a.points, b.n, axis=0)
        pairs_y = np.tile(b.points, (a.n, 1))
        direction = any_log(pairs_x, pairs_y)
        root = np.zeros(pairs_x.shape[0])
        for s, middle in enumerate(sphere.midpoint(self.nodes[:-1], self.nodes[1:])):
            at = sphere.exp(pairs_x, (s + 0.5) / segments * direction)
            root += np.sqrt(self.functional.fields(at, middle, 0).effective_mobility)
        squared = np.einsum("kd,kd->k", direction, direction)
        cost: Array = ((root / segments) ** 2 * squared).reshape(a.n, b.n)
        return cost


@dataclass(frozen=True, eq=False)
class _Action:
    """The discrete action of paths (N+1, K, d) and its gradient in the nodes."""

    model: AttentionModel
    t: float
    mass: Array

    def fields(self, at: Array, sources: Array, order: int) -> Fields:
        heads = self.model.heads(self.t)
        sums = self.model.kernel.sums(at, sources, self.mass, heads.matrices, order)
        return Fields(at=at, heads=heads, sign=1, sums=sums)

    def __call__(self, nodes: Array) -> tuple[float, Array]:
        segments = nodes.shape[0] - 1
        gradient = np.zeros_like(nodes)
        action = 0.0
        for s in range(segments):
            left, right = nodes[s], nodes[s + 1]
            middle = sphere.midpoint(left, right)
            back, ahead = any_log(right, left), any_log(left, right)
            squared = np.einsum("kd,kd->k", ahead, ahead)
            fields = self.fields(middle, middle, 1)
            mobility = fields.effective_mobility
            weight = segments * self.mass * mobility
            action += float(weight @ squared)
            gradient[s] -= 2 * weight[:, None] * ahead
            gradient[s + 1] -= 2 * weight[:, None] * back
            pull = self._mobility_pull(fields, segments * self.mass * squared)
            # the midpoint (x + y)/|x + y| moves by P_m dx / |x + y|
            span = np.linalg.norm(left + right, axis=1)[:, None]
            gradient[s] += pull / span
            gradient[s + 1] += pull / span
        return action, sphere.project(nodes, gradient)

    def _mobility_pull(self, fields: Fields, charge: Array) -> Array:
        r"""Gradient in the midpoints of :math:`\sum_k q_k \hat b(m_k; \mu^{mid})`, as target and as source."""
        direct = charge[:, None] * fields.effective_mobility_gradient
        points, heads = fields.at, fields.heads
        ratio = np.exp(fields.log_effective_mobility - fields.sums.log_mobility)
        indirect = np.zeros_like(points)
        for h in range(heads.count):
            # d bhat_k / d b_hk = w_h (bhat_k / b_hk)^2, and b_hk feels m_l with weight pi_l
            adjoint = charge * heads.weights[h] * ratio[h] ** 2
            if not adjoint.any():
                continue
            sums = self.model.kernel.sums(
                points, points, adjoint, heads.matrices[h : h + 1], 1
            )
            push = Fields(
                at=points,
                heads=type(heads)(heads.matrices[h : h + 1]),
                sign=1,
                sums=sums,
            )
            indirect += self.mass[:, None] * push.gradient
        return direct + indirect

    def minimise(self, nodes: Array, tolerance: float) -> tuple[Array, Array]:
        """L-BFGS in ambient coordinates, every node normalised inside the objective."""
        inner = nodes[1:-1]
        shape = inner.shape
        scale = np.sqrt(np.maximum(self.mass, 1e-300))[:, None]
        reference = self(nodes)[0]

        def assemble(flat: Array) -> tuple[Array, Array]:
            # scaled displacement from the start: equal masses to the optimiser
            ambient = inner + flat.reshape(shape) / scale
            norm = np.linalg.norm(ambient, axis=-1, keepdims=True)
            return np.concatenate([nodes[:1], ambient / norm, nodes[-1:]]), norm

        def objective(flat: Array) -> tuple[float, Array]:
            full, norm = assemble(flat)
            value, gradient = self(full)
            return value / reference, (gradient[1:-1] / norm / scale).ravel() / reference

        result = optimize.minimize(
            objective,
            np.zeros(inner.size),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 2000, "maxcor": 30, "ftol": 1e-15, "gtol": tolerance},
        )
        final = assemble(result.x)[0]
        return final, self(final)[1]
