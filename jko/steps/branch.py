r"""Branch and bound for the one-token problems on the circle and the sphere.

Around ``y_i`` the problem is strongly convex in a ball, by the Hessian there and a bound on
its variation; on a cell of center ``z`` and radius ``r`` outside, the larger of

.. math::

    \hat b_i \frac{(d(x_i, z) - r)_+^2}{2\tau} + V(z) - |\nabla V(z)| r - \tfrac12 C r^2
    \quad\text{and}\quad
    f_i(z) - |\nabla f_i(z)| r - \tfrac12 \Big(C - \tfrac{\hat b_i}{\tau} \theta\cot\theta\Big)_+ r^2

with :math:`\theta = d(x_i, z) + r` and :math:`\mathrm{Hess} V \ge -C` on the cell, is a lower bound.  A cell whose bound
exceeds ``f_i(y_i)`` is done, one whose center is better ends the token as refuted, and the
others are subdivided.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import sphere
from ..attention.fields import Fields
from ..attention.heads import Heads
from ..transport.cost import theta_cot_theta
from .bounds import PotentialBounds
from .cells import Cells
from .pointwise import TokenProblems
from .problem import Evaluation

__all__ = ["BranchReport", "Curvature", "branch_and_bound"]

Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.intp]

FIRST_LEVEL = {2: 5, 3: 2}
LEVELS = {2: 24, 3: 14}
MAX_PAIRS = 400_000
TOKEN_BLOCK = 500
CANDIDATES = 3
RESOLUTION = 1e-13


@dataclass(frozen=True, kw_only=True, eq=False)
class BranchReport:
    """Per token: proven gap bound, whether proven, and the most promising other points."""

    gap: Array
    proven: BoolArray
    candidates: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class _Potential:
    """V with its bounds at some points."""

    points: Array
    value: Array
    slope: Array
    gradient: Array
    floor: Array
    mobility: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Curvature:
    """Bounds on second and third derivatives of V near points, local or global."""

    bounds: PotentialBounds
    norms: Array
    weights: Array
    sign: int

    @classmethod
    def of(cls, heads: Heads, sign: int, bounds: PotentialBounds) -> Curvature:
        """From the heads and the global bounds."""
        return cls(bounds=bounds, norms=heads.norms, weights=heads.weights, sign=sign)

    def _near(self, head_mobility: Array, radius: Array) -> Array:
        """``w_h`` times an upper bound of ``b_h`` within ``radius`` of the points, (H, m)."""
        with np.errstate(over="ignore"):
            growth = np.exp(self.norms[:, None] * radius)
        near: Array = self.weights[:, None] * head_mobility * growth
        return near

    def concavity(self, head_mobility: Array, radius: Array) -> Array:
        """``Hess V >= -`` this within ``radius``."""
        r = self.norms[:, None]
        # Hess of the kernel is e^c (<u, v>^2 - c), between -r e^c and (r^2 + r) e^c
        density = r if self.sign > 0 else r + r**2
        local = (self._near(head_mobility, radius) * density).sum(axis=0)
        return np.minimum(self.bounds.concavity, local)

    def third(self, head_mobility: Array, radius: Array) -> Array:
        """Lipschitz constant of ``Hess V`` within ``radius``."""
        r = self.norms[:, None]
        # q (q^2 + 3 |c| + 1) with q^2 + c^2 <= r^2 is at most r^3 + 3 r^2 / 2 + r
        local = (self._near(head_mobility, radius) * (r**3 + 1.5 * r**2 + r)).sum(axis=0)
        return np.minimum(self.bounds.hessian_lipschitz, local)


def branch_and_bound(
    problems: TokenProblems, at: Evaluation, value: Array, tokens: IntArray
) -> BranchReport:
    """Decide the problems of ``tokens``, whose current values are ``value[tokens]``."""
    heads, sign = at.fields.heads, problems.problem.model.sign
    bounds = PotentialBounds.of_measure(at.points, problems.problem.weights, heads, sign)
    curvature = Curvature.of(heads, sign, bounds)
    if at.fields.sums.order < 2:
        raise ValueError("branch and bound needs an evaluation of order 2")
    # bounds of very strong heads overflow to infinity, and then prove nothing
    with np.errstate(over="ignore", invalid="ignore"):
        reports = [
            _decide(problems, at, value, tokens[first : first + TOKEN_BLOCK], curvature)
            for first in range(0, tokens.size, TOKEN_BLOCK)
        ]
    return BranchReport(
        gap=np.concatenate([report.gap for report in reports]),
        proven=np.concatenate([report.proven for report in reports]),
        candidates=np.concatenate([report.candidates for report in reports]),
    )


def _decide(
    problems: TokenProblems,
    at: Evaluation,
    value: Array,
    tokens: IntArray,
    curvature: Curvature,
) -> BranchReport:
    """One block of tokens: subdivide the cells that matter to some of them."""
    state = _TokenState.build(problems, at, value, tokens, curvature)
    dim = at.points.shape[1]
    cells = Cells.cover(dim, FIRST_LEVEL[dim])
    count = cells.vertices.shape[0]
    token = np.repeat(np.arange(tokens.size), count)
    cell = np.tile(np.arange(count), tokens.size)
    for _ in range(LEVELS[dim]):
        if token.size == 0:
            break
        if token.size > MAX_PAIRS:
            state.give_up(token)
            break
        keep = _undecided(problems, state, cells, token, cell, curvature)
        token, cell = token[keep], cell[keep]
        # a token without a convex ball cannot be proven: the first cells gave its candidates
        state.live &= ~state.unproven
        alive = state.live[token]
        token, cell = token[alive], cell[alive]
        used, local = np.unique(cell, return_inverse=True)
        cells = cells.take(used).subdivided()
        children = cells.vertices.shape[0] // max(used.size, 1)
        token = np.repeat(token, children)
        cell = (local[:, None] * children + np.arange(children)).ravel()
    else:
        state.give_up(token)
    return state.report()


@dataclass(eq=False)
class _TokenState:
    """What is known about every token while cells are being decided."""

    source: Array
    point: Array
    value: Array
    stiffness: Array
    near: _Neighbourhood
    gap: Array
    live: BoolArray
    unproven: BoolArray
    candidate: Array
    candidate_value: Array

    @classmethod
    def build(
        cls,
        problems: TokenProblems,
        at: Evaluation,
        value: Array,
        tokens: IntArray,
        curvature: Curvature,
    ) -> _TokenState:
        source, point = problems.anchors[0].cost.points[tokens], at.points[tokens]
        stiffness = problems.stiffness(tokens)
        fields = at.fields
        hessian = fields.first_variation_hessian(tokens)
        lowest = _lowest_tangent_eigenvalue(hessian, point)
        mobility = fields.head_mobility[:, tokens]
        gradient = at.gradient[tokens]
        slope = np.sqrt(np.vecdot(gradient, gradient))
        near = _neighbourhood(source, point, slope, stiffness, lowest, mobility, curvature)
        return cls(
            source=source,
            point=point,
            value=value[tokens],
            stiffness=stiffness,
            near=near,
            gap=near.gap.copy(),
            live=np.ones(tokens.size, dtype=bool),
            unproven=near.modulus == 0,
            candidate=np.repeat(point[:, None], CANDIDATES, axis=1),
            candidate_value=np.full((tokens.size, CANDIDATES), np.inf),
        )

    def give_up(self, token: IntArray) -> None:
        self.unproven[token] = True

    def offer(self, token: IntArray, points: Array, values: Array) -> None:
        """Remember the best undecided center of every token (rotating through the slots)."""
        if token.size == 0:
            return
        order = np.lexsort((values, token))
        first = np.concatenate([[True], np.diff(token[order]) > 0])
        best = order[first]
        rows = token[best]
        slot = np.argmax(self.candidate_value[rows], axis=1)
        better = values[best] < self.candidate_value[rows, slot]
        rows, slot, best = rows[better], slot[better], best[better]
        self.candidate[rows, slot] = points[best]
        self.candidate_value[rows, slot] = values[best]

    def report(self) -> BranchReport:
        return BranchReport(gap=self.gap, proven=~self.unproven, candidates=self.candidate)


def _lowest_tangent_eigenvalue(hessian: Array, point: Array) -> Array:
    # lift the normal direction above everything, then the smallest eigenvalue is tangent
    lift = np.abs(hessian).sum(axis=(1, 2)) + 1
    lifted = hessian + lift[:, None, None] * point[:, :, None] * point[:, None, :]
    lowest: Array = np.linalg.eigvalsh(lifted)[:, 0]
    return lowest


@dataclass(frozen=True, kw_only=True, eq=False)
class _Neighbourhood:
    """What is certain around every ``y_i``.

    Attributes
    ----------
    convex, modulus : (n,)
        Radius of strong convexity and its modulus; zero where none was found.
    gap : (n,)
        ``|g|^2 / (2 modulus)``: ``f_i`` is nowhere lower by more in the convex ball ...
    safe : (n,)
        ... nor in this larger one.
    """

    convex: Array
    modulus: Array
    gap: Array
    safe: Array


def _neighbourhood(
    source: Array,
    point: Array,
    slope: Array,
    stiffness: Array,
    lowest: Array,
    mobility: Array,
    curvature: Curvature,
) -> _Neighbourhood:
    r"""Lower bounds of ``f_i`` along geodesics from ``y_i``.

    Within distance ``r`` the second derivative is at least
    :math:`\kappa(r) = \hat b_i \theta\cot\theta/\tau + \lambda_{min} - r T`, with :math:`\theta = d(x_i, y_i) + r` and T the Lipschitz
    constant of ``Hess V`` there; it decreases.  So :math:`f_i(\exp_y(r u)) - f_i(y) \ge -|g| r + \int_0^r (r - s) \kappa(s) ds`,
    which stays above minus the gap about three times as far as :math:`\kappa` stays positive.
    """
    angle = sphere.distance(source, point)
    circle = point.shape[1] == 2
    start = stiffness * (1.0 if circle else theta_cot_theta(angle)) + lowest
    radii = np.geomspace(1e-5, 1.5, 60)
    kappas = np.empty((radii.size, angle.size))
    convex, modulus = np.zeros_like(angle), np.zeros_like(angle)
    for kappa, radius in zip(kappas, radii, strict=True):
        reach = angle + radius
        shape = 1.0 if circle else theta_cot_theta(np.minimum(reach, np.pi - 1e-9))
        third = curvature.third(mobility, radius)
        kappa[:] = np.where(reach < np.pi, stiffness * shape + lowest - radius * third, -np.inf)
        good = (kappa > 0.1 * np.maximum(start, 0)) & (kappa > 0)
        convex, modulus = np.where(good, radius, convex), np.where(good, kappa, modulus)
    found = modulus > 0
    gap = np.where(found, slope**2 / (2 * np.where(found, modulus, 1)), 0)
    # kappa at the end of a segment bounds it on the whole of it
    width = np.diff(radii, prepend=0.0)[:, None]
    change = np.cumsum(kappas * width, axis=0) - slope
    before = np.vstack([-slope, change[:-1]])
    fall = np.cumsum(before * width + kappas * width**2 / 2, axis=0)
    # the bound is lowest at an end of the segment, unless it turns upwards inside
    ends = (before >= 0) | (kappas <= 0)
    certain = (radii[:, None] <= convex) | ((fall >= -gap) & ends)
    certain = np.logical_and.accumulate(certain, axis=0)
    safe = np.where(certain, radii[:, None], 0).max(axis=0)
    return _Neighbourhood(
        convex=convex, modulus=modulus, gap=gap, safe=np.where(found, safe, 0)
    )


def _potential(fields: Fields, radius: Array, curvature: Curvature) -> _Potential:
    mobility = fields.head_mobility
    gradient = fields.gradient
    return _Potential(
        points=fields.at,
        value=fields.first_variation,
        slope=np.sqrt(np.einsum("md,md->m", gradient, gradient)),
        gradient=gradient,
        floor=curvature.concavity(mobility, radius),
        mobility=mobility,
    )


def _undecided(
    problems: TokenProblems,
    state: _TokenState,
    cells: Cells,
    token: IntArray,
    cell: IntArray,
    curvature: Curvature,
) -> BoolArray:
    """Which (token, cell) pairs need subdivision; refuted tokens are taken off the list."""
    radii = cells.radii
    potential = _potential(problems.fields(cells.centers, 1), radii, curvature)
    r, center = radii[cell], potential.points[cell]
    apart = sphere.distance(state.point[token], center)
    outside = apart + r > state.near.safe[token]
    outside |= state.unproven[token]
    source, stiffness = state.source[token], state.stiffness[token]
    angle = sphere.distance(source, center)
    pull = 0.5 * stiffness * np.maximum(angle - r, 0) ** 2
    value, floor = potential.value[cell], potential.floor[cell]
    separate = pull + value - potential.slope[cell] * r - 0.5 * floor * r**2
    joint_value = 0.5 * stiffness * angle**2 + value
    joint = joint_value - _joint_drop(source, center, angle, stiffness, potential, cell, floor, r)
    target = state.value[token]
    noise = RESOLUTION * np.maximum(np.abs(target), 1)
    # written so that a bound that overflowed to nothing decides nothing
    undecided = outside & ~(np.maximum(separate, joint) > target + noise)
    refuted = undecided & (joint_value < target - noise)
    # centers well inside the convex ball only rediscover the token itself
    far = apart > 2 * state.near.convex[token]
    state.offer(token[undecided & far], center[undecided & far], joint_value[undecided & far])
    state.unproven[token[refuted]] = True
    state.live[token[refuted]] = False
    return undecided


def _joint_drop(
    source: Array,
    center: Array,
    angle: Array,
    stiffness: Array,
    potential: _Potential,
    cell: IntArray,
    floor: Array,
    r: Array,
) -> Array:
    """How far ``f_i`` can fall below its value at the center, by its own first-order model."""
    # away from the source the tangent of the geodesic is (z cos - x) / sin
    sine = np.sin(angle)
    with np.errstate(divide="ignore", invalid="ignore"):
        unit = (np.cos(angle)[:, None] * center - source) / sine[:, None]
    directed = sine > 1e-7
    unit = np.where(directed[:, None], unit, 0)
    slope = stiffness[:, None] * angle[:, None] * unit + potential.gradient[cell]
    steep = np.sqrt(np.einsum("kd,kd->k", slope, slope))
    # at the source itself the direction is lost but the pull is at most this
    steep += stiffness * angle * np.where(directed, 1e-9, 1)
    reach = angle + r
    circle = center.shape[1] == 2
    shape = np.ones_like(reach) if circle else theta_cot_theta(np.minimum(reach, np.pi - 1e-9))
    drop = steep * r + 0.5 * np.maximum(floor - stiffness * shape, 0) * r**2
    return np.where(reach < np.pi - 1e-6, drop, np.inf)
