r"""Positions for a fixed coupling: preconditioned quasi-Newton on the sphere, Newton at the end.

The quasi-Newton method is L-BFGS in the tangent spaces with the mass-weighted inner product
:math:`\langle u, v\rangle = \sum_j a_j \langle u_j, v_j\rangle`, preconditioned by the token-wise
diagonal blocks of the Hessian and the smoothing coupling between tokens, of low numerical rank.
Where it stalls, a truncated Newton method takes over, its Hessian products differences of
gradients.  Acceptance near rounding uses directional
derivatives, since differences of the objective carry no digits there (the approximate Wolfe
condition of Hager and Zhang, SIAM J. Optim. 16, 2005).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import sphere
from .coupling import worth_coupling
from .memory import remembered_pairs
from .preconditioner import Preconditioner, series_terms
from .problem import Evaluation, Objective

__all__ = ["PositionsResult", "clipped", "minimise_positions"]

Array = NDArray[np.float64]

#: An iteration is fast if it lowers the gradient norm to this share.
FAST = 0.1

#: A first iteration that moves no token further (radians) is expected to be fast.
SHORT_MOVE = 0.05

SUFFICIENT_DECREASE = 1e-4
LONGEST_MOVE = 1.0
FINITE_DIFFERENCE = 1e-6


@dataclass(frozen=True, kw_only=True, eq=False)
class PositionsResult:
    """Where the minimiser stopped: evaluation, iterations and whether the tolerance was met."""

    best: Evaluation
    iterations: int
    converged: bool


class _Geometry:
    """Mass-weighted inner product."""

    def __init__(self, weights: Array) -> None:
        self.weights = weights

    def dot(self, u: Array, v: Array) -> float:
        return float(self.weights @ np.vecdot(u, v))


def minimise_positions(
    objective: Objective, start: Evaluation, tolerance: float, max_evaluations: int
) -> PositionsResult:
    """Minimise the objective from ``start`` until its gradient norm is at most ``tolerance``."""
    at, iterations, converged = _quasi_newton(objective, start, tolerance, max_evaluations)
    if not converged and objective.evaluations < max_evaluations:
        at, extra, converged = _truncated_newton(objective, at, tolerance, max_evaluations)
        iterations += extra
    return PositionsResult(best=at, iterations=iterations, converged=converged)


def _quasi_newton(
    objective: Objective, at: Evaluation, tolerance: float, max_evaluations: int
) -> tuple[Evaluation, int, bool]:
    """L-BFGS; the preconditioner is renewed where it did not make the last iteration fast.

    While it does, evaluations need no second moments, unless others start from the result.
    """
    space = _Geometry(objective.problem.weights)
    pairs: deque[tuple[Array, Array]] = deque(maxlen=remembered_pairs(*at.points.shape))
    best, since_best = at.norm, 0
    iteration = 0
    coupled = worth_coupling(at.points.shape[0], at.fields.heads)
    fast, precondition = False, None
    while at.norm > tolerance:
        if objective.evaluations >= max_evaluations or since_best > 15:
            return at, iteration, False
        iteration += 1
        if precondition is None:
            precondition = Preconditioner(objective, at, coupled).completed()
        terms = series_terms(at.norm, tolerance)
        direction = clipped(-_two_loop(space, at, pairs, precondition, terms))
        slope = space.dot(at.gradient, direction)
        if slope >= 0 or not np.isfinite(slope):
            pairs.clear()
            direction = clipped(-precondition(at.points, at.gradient, terms))
            slope = space.dot(at.gradient, direction)
        if iteration == 1:
            fast = float(lengths(direction).max()) <= SHORT_MOVE
        order = 1 if fast and not objective.problem.labelled else objective.order
        found = _line_search(objective, space, at, direction, slope, max_evaluations, order)
        if found is None:
            if not pairs:
                return at, iteration, False
            pairs.clear()
            since_best += 5
            continue
        new, length = found
        if new.norm <= tolerance:
            return new, iteration, True
        moved = sphere.project(new.points, length * direction)
        change = new.gradient - sphere.project(new.points, at.gradient)
        curvature = space.dot(moved, change)
        if curvature > 1e-10 * np.sqrt(space.dot(moved, moved) * space.dot(change, change)):
            pairs.append((moved, change))
        if not fast:
            precondition = None
        # the series promised more than there was: far from its minimum C is no guide
        coupled &= length == 1
        fast = new.norm <= FAST * at.norm
        at = new
        since_best = 0 if at.norm < 0.9 * best else since_best + 1
        best = min(best, at.norm)
    return at, iteration, True


def clipped(direction: Array) -> Array:
    """Tangent vectors (n, d), none longer than `LONGEST_MOVE`."""
    length = lengths(direction)
    if length.max() <= LONGEST_MOVE:
        return direction
    return direction * np.minimum(1, LONGEST_MOVE / np.maximum(length, 1e-300))[:, None]


def lengths(v: Array) -> Array:
    """Lengths of the rows."""
    return np.sqrt(np.vecdot(v, v))


def _two_loop(
    space: _Geometry,
    at: Evaluation,
    pairs: deque[tuple[Array, Array]],
    precondition: Preconditioner,
    terms: int,
) -> Array:
    """L-BFGS recursion; stored pairs are transported by projection, one at a time."""
    vector = at.gradient
    used: list[tuple[Array, Array, float, float]] = []
    for s, y in reversed(pairs):
        change = sphere.project(at.points, y)
        # vector and change are tangent: s needs no projection
        sy = space.dot(s, change)
        if sy > 0:
            alpha = space.dot(s, vector) / sy
            vector = vector - alpha * change
            used.append((s, y, sy, alpha))
    vector = precondition(at.points, vector, terms)
    for s, y, sy, alpha in reversed(used):
        coefficient = alpha - space.dot(y, vector) / sy
        vector = vector + coefficient * sphere.project(at.points, s)
    return vector


def _line_search(
    objective: Objective,
    space: _Geometry,
    at: Evaluation,
    direction: Array,
    slope: float,
    max_evaluations: int,
    order: int,
) -> tuple[Evaluation, float] | None:
    """Backtrack from 1 until sufficient decrease, or approximate Wolfe within rounding."""
    # rounding of the sums over tokens grows like a random walk once they are many
    growth = max(1.0, np.sqrt(at.points.shape[0]) / 256)
    noise = 4 * np.finfo(float).eps * growth * (abs(at.transport) + abs(at.energy))
    length = 1.0
    for _ in range(30):
        if objective.evaluations >= max_evaluations:
            return None
        new = objective(sphere.exp(at.points, length * direction), order)
        if new.value <= at.value + SUFFICIENT_DECREASE * length * slope:
            return new, length
        if new.value <= at.value + noise:
            end_slope = space.dot(new.gradient, direction)
            if end_slope <= -0.8 * slope and new.norm < at.norm:
                return new, length
        drop = new.value - at.value - length * slope
        guess = -slope * length**2 / (2 * drop) if drop > 0 else length / 2
        length = float(np.clip(guess, 0.1 * length, 0.5 * length))
    return None


def _truncated_newton(
    objective: Objective, at: Evaluation, tolerance: float, max_evaluations: int
) -> tuple[Evaluation, int, bool]:
    """Newton's method, its systems solved by preconditioned conjugate gradients."""
    space = _Geometry(objective.problem.weights)
    iteration = 0
    if objective.order == 2 and at.fields.sums.order < 2:
        at = objective(at.points)
    while at.norm > tolerance:
        if objective.evaluations >= max_evaluations or iteration >= 50:
            return at, iteration, False
        iteration += 1
        precondition = Preconditioner(objective, at)
        accuracy = min(0.1, np.sqrt(at.norm))
        direction = clipped(_newton_direction(objective, space, at, precondition, accuracy))
        slope = space.dot(at.gradient, direction)
        if slope >= 0:
            direction = clipped(-precondition(at.points, at.gradient))
            slope = space.dot(at.gradient, direction)
        order = objective.order
        found = _line_search(objective, space, at, direction, slope, max_evaluations, order)
        if found is None:
            return at, iteration, False
        at = found[0]
    return at, iteration, True


def _newton_direction(
    objective: Objective,
    space: _Geometry,
    at: Evaluation,
    precondition: Preconditioner,
    accuracy: float,
) -> Array:
    """Conjugate gradients on ``Hess d = -g``; a direction of negative curvature ends them."""
    solution = np.zeros_like(at.gradient)
    residual = -at.gradient
    preconditioned = precondition(at.points, residual)
    search = preconditioned
    energy = space.dot(residual, preconditioned)
    goal = accuracy**2 * energy
    for _ in range(40):
        product = hessian_product(objective, at, search)
        curvature = space.dot(search, product)
        if curvature <= 0:
            return search if not solution.any() else solution
        length = energy / curvature
        solution = solution + length * search
        residual = residual - length * product
        preconditioned = precondition(at.points, residual)
        new_energy = space.dot(residual, preconditioned)
        if new_energy <= goal:
            break
        search = preconditioned + (new_energy / energy) * search
        energy = new_energy
    return solution


def hessian_product(objective: Objective, at: Evaluation, v: Array) -> Array:
    """Central difference of transported gradients along ``v``: two kernel passes."""
    longest = float(np.linalg.norm(v, axis=1).max())
    if longest == 0:
        return np.zeros_like(v)
    h = FINITE_DIFFERENCE / longest
    ends = []
    for side in (1, -1):
        end = objective(sphere.exp(at.points, side * h * v), order=1)
        ends.append(sphere.transport(end.points, at.points, end.gradient))
    return (ends[0] - ends[1]) / (2 * h)
