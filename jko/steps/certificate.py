r"""The optimality of a step's positions: local proof in O(n), branch and bound, search.

With V the first variation at the new measure, token ``i`` must minimise
:math:`f_i(y) = \hat b_i d(x_i, y)^2/(2\tau) + V(y)` over the whole sphere.  Three instruments, in order:

1. *Local proof*, any dimension, O(n) beside one kernel pass: only points within ``R_i`` of
   ``x_i`` can compete; if :math:`R_i < \pi/2` and
   :math:`\kappa_i = \hat b_i R_i\cot R_i/\tau - \Lambda > 0` (on the circle 1 for :math:`R\cot R` and :math:`\pi` for
   :math:`\pi/2`), ``f_i`` is strongly convex there and :math:`gap_i \le |\nabla f_i(y_i)|^2/(2\kappa_i)`.
   For many tokens (d = 2, 3) once more with constants surveyed on cells.
2. *Two regions* (d = 2, 3): convex in a ball around ``y_i``, and above ``f_i(y_i)`` on every cell
   outside it, cells being subdivided until they are decided.
3. *Search*: local minimisation from the most promising points.  It finds counterexamples and
   proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .. import sphere
from ..transport.cost import SourceCost, theta_cot_theta
from .bounds import PotentialBounds
from .branch import Curvature, branch_and_bound
from .cells import Cells
from .pointwise import TokenProblems
from .problem import Coupling, Evaluation, StepProblem
from .survey import SURVEY_LEVEL, Survey

__all__ = ["GapReport", "full_gap", "local_gap"]

Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.intp]

#: A competitor must be better by this much (relative to the size of f) to count: below it,
#: rounding decides.
RESOLUTION = 1e-13

#: From this many open tokens on, constants surveyed on cells pay before tokens x cells tables.
SURVEY_TOKENS = 1_000

#: Open tokens that branch and bound, or a search, looks at.
BRANCH_TOKENS = 20_000

#: Random directions of the multi-start search in high dimension.
SEARCH_NODES = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class GapReport:
    """Gap of every token.

    Attributes
    ----------
    gap : (n,)
        Proven upper bound where ``proven``, largest gap found elsewhere.
    proven : (n,) bool
    decided : (n,) bool
        Tokens that were proven or searched.
    competitor : (n, d)
        The best position found for each token's mass (its own where nothing better was found).
    """

    gap: Array
    proven: BoolArray
    decided: BoolArray
    competitor: Array

    @classmethod
    def unchecked(cls, points: Array) -> GapReport:
        """Nothing known about any token."""
        none = np.zeros(points.shape[0], dtype=bool)
        return cls(gap=np.zeros(none.size), proven=none, decided=none, competitor=points)

    @property
    def optimality(self) -> str:
        """As a certificate says it."""
        if self.proven.all():
            return "proven"
        if self.worse.any():
            return "failed"
        return "searched" if self.decided.all() else "unchecked"

    @property
    def worse(self) -> BoolArray:
        """Tokens for which a better position was found."""
        return ~self.proven & (self.gap > 0)


def provable(problems: TokenProblems, coupling: Coupling) -> bool:
    """Whether the proofs apply: one ``"source"`` cost and the identity coupling."""
    anchors = problems.anchors
    return coupling.identity and len(anchors) == 1 and isinstance(anchors[0].cost, SourceCost)


def token_values(problem: StepProblem, at: Evaluation, coupling: Coupling) -> Array:
    """``sum_j (pi_ij / a_i) f_i(y_j)``, what every token pays now, shape (n,)."""
    own = coupling.at_targets(at.fields.first_variation)
    for anchor, terms in zip(problem.anchors, at.terms, strict=True):
        own = own + anchor.coefficient / (2 * problem.step) * terms.value
    if coupling.identity:
        return own
    return np.bincount(coupling.rows, coupling.mass * own) / problem.weights


def local_gap(problems: TokenProblems, at: Evaluation, coupling: Coupling) -> GapReport:
    """The O(n) proof of every token; nothing is proven where it does not apply."""
    if not provable(problems, coupling):
        return GapReport.unchecked(at.points)
    value = token_values(problems.problem, at, coupling)
    gap, proven = local_proof(problems, at, value, _global_bounds(problems, at, third=False))
    if at.points.shape[1] <= 3 and (~proven).sum() > SURVEY_TOKENS:
        gap, proven = local_proof(problems, at, value, _surveyed_bounds(problems, at))
    return GapReport(gap=gap, proven=proven, decided=proven, competitor=at.points)


def _global_bounds(
    problems: TokenProblems, at: Evaluation, third: bool = True
) -> PotentialBounds:
    problem = problems.problem
    heads, sign = at.fields.heads, problem.model.sign
    return PotentialBounds.of_measure(at.points, problem.weights, heads, sign, third)


def full_gap(
    problems: TokenProblems, at: Evaluation, coupling: Coupling, known: GapReport
) -> GapReport:
    """Decide the tokens that ``known`` leaves open: branch and bound, then search."""
    gap, proven, competitor = known.gap.copy(), known.proven.copy(), at.points.copy()
    value = token_values(problems.problem, at, coupling)
    low_dimension = at.points.shape[1] <= 3 and provable(problems, coupling)
    # beyond the limit only some of the open tokens are looked at, and the report says so
    open_tokens = np.flatnonzero(~proven)[:BRANCH_TOKENS]
    decided = proven.copy()
    decided[open_tokens] = True
    starts = None
    if low_dimension and open_tokens.size:
        if at.fields.sums.order < 2:
            at = replace(at, fields=problems.fields(at.points, 2))
        branch = branch_and_bound(problems, at, value, open_tokens)
        gap[open_tokens], proven[open_tokens] = branch.gap, branch.proven
        open_tokens = open_tokens[~branch.proven]
        starts = branch.candidates[~branch.proven]
    if open_tokens.size:
        starts = _multi_start(problems, at, open_tokens) if starts is None else starts
        best, where = _search(problems, open_tokens, starts)
        drop = value[open_tokens] - best
        found = drop > RESOLUTION * np.maximum(np.abs(value[open_tokens]), 1)
        gap[open_tokens] = np.where(found, drop, 0)
        competitor[open_tokens[found]] = where[found]
    return GapReport(gap=gap, proven=proven, decided=decided, competitor=competitor)


def _surveyed_bounds(problems: TokenProblems, at: Evaluation) -> PotentialBounds:
    dim = at.points.shape[1]
    cells = Cells.cover(dim, SURVEY_LEVEL[dim])
    fields = problems.fields(cells.centers, 2)
    bounds = _global_bounds(problems, at)
    curvature = Curvature.of(fields.heads, problems.problem.model.sign, bounds)
    return Survey.of(fields, cells.radii, curvature).bounds


def local_proof(
    problems: TokenProblems, at: Evaluation, value: Array, bounds: PotentialBounds
) -> tuple[Array, BoolArray]:
    """The O(n) proof: bounds on the gaps and where they are proven.

    A competitor ``y`` has ``bhat d^2/(2 tau) <= f_i(y_i) - V(y)``; with ``V(y) >= V_low``, or with
    ``V(y) >= V(x_i) - L d`` and ``e = max(f_i(y_i) - V(x_i), 0)``, this bounds its distance ``d``.
    In the second, ``V(x_i) >= V(y_i) + <grad V(y_i), log x_i> - concavity d(x_i, y_i)^2 / 2`` needs
    no value at ``x_i``: near a minimum of ``f_i`` it leaves ``e = 0`` wherever ``kappa_i > 0``.
    """
    problem, cost = problems.problem, problems.anchors[0].cost
    mobility = cost.mobility
    noise = RESOLUTION * np.maximum(np.abs(value), 1)
    above = np.maximum(value - bounds.lower, 0) + noise
    by_lower = np.sqrt(2 * problem.step * above / mobility)
    excess = np.maximum(value - _source_floor(at, bounds), 0) + noise
    slope = np.float64(bounds.lipschitz)
    with np.errstate(over="ignore"):
        by_slope = (problem.step / mobility) * (
            slope + np.sqrt(slope**2 + 2 * mobility * excess / problem.step)
        )
    radius = np.minimum(by_lower, by_slope)
    circle = at.points.shape[1] == 2
    shape = np.ones_like(radius) if circle else theta_cot_theta(np.minimum(radius, np.pi / 2))
    kappa = mobility * shape / problem.step - bounds.concavity
    proven = (radius < (np.pi if circle else np.pi / 2)) & (kappa > 0)
    gradient = np.vecdot(at.gradient, at.gradient)
    gap = np.where(proven, gradient / (2 * np.where(proven, kappa, 1)), 0)
    return gap, proven


def _source_floor(at: Evaluation, bounds: PotentialBounds) -> Array:
    """Lower bounds of V at the sources, from its value and slope at the new positions."""
    back = at.terms[0].back
    floor: Array = at.fields.first_variation + np.vecdot(at.fields.gradient, back)
    floor -= bounds.concavity / 2 * np.vecdot(back, back)
    return floor


def _multi_start(problems: TokenProblems, at: Evaluation, tokens: IntArray) -> Array:
    """For each token the best three among its source, all new points and random directions."""
    dim = at.points.shape[1]
    rng = np.random.default_rng(dim)
    extra = sphere.normalize(rng.standard_normal((SEARCH_NODES, dim)))
    pool = np.concatenate([at.points[: 4 * SEARCH_NODES], extra])
    potential = problems.fields(pool, 0).first_variation
    count = min(3, pool.shape[0])
    starts = np.empty((tokens.size, count, dim))
    block = max(1, 2_000_000 // pool.shape[0])
    for first in range(0, tokens.size, block):
        chosen = tokens[first : first + block]
        rows = np.repeat(chosen, pool.shape[0])
        values = problems.values(rows, np.tile(pool, (chosen.size, 1)), np.tile(potential, chosen.size))
        order = np.argsort(values.reshape(chosen.size, -1), axis=1)[:, :count]
        starts[first : first + block] = pool[order]
    return starts


def _search(
    problems: TokenProblems, tokens: IntArray, starts: Array
) -> tuple[Array, Array]:
    """Best local minimum of each token's problem from its starts (k, s, d) and its source."""
    origin = problems.anchors[0].cost.points[tokens][:, None]
    starts = np.concatenate([starts, origin], axis=1)
    count, dim = starts.shape[1:]
    rows = np.repeat(tokens, count)
    points, values = problems.minimise(rows, starts.reshape(-1, dim))
    values = values.reshape(-1, count)
    choice = np.argmin(values, axis=1)
    index = np.arange(tokens.size)
    return values[index, choice], points.reshape(-1, count, dim)[index, choice]
