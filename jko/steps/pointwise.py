r"""The one-token problems :math:`f_i(y) = c(x_i, y)/(2\tau) + V(y)` with V fixed, many at once.

(With several anchors, :math:`\sum_m \gamma_m c_m(u^m_i, y)/(2\tau)` instead of the first term.)

A step is optimal iff every token sits at a minimum of its own problem; test particles of
weight zero move by it alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import sphere
from ..attention.fields import Fields
from ..transport.cost import any_log
from .memory import pass_order
from .problem import Anchor, StepProblem

__all__ = ["TokenProblems"]

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

LONGEST_MOVE = 0.5


@dataclass(eq=False)
class TokenProblems:
    """The problems ``f_i`` of one measure; counts its kernel passes.

    Parameters
    ----------
    problem : StepProblem
    points : (n, d)
        The measure whose first variation is V.
    anchors : tuple of Anchor
        Transport terms; those of the problem, or of other sources (test particles).
    """

    problem: StepProblem
    points: Array
    anchors: tuple[Anchor, ...]
    evaluations: int = 0

    def fields(self, at: Array, order: int) -> Fields:
        """Fields of the measure at ``at``: one kernel pass."""
        self.evaluations += 1
        return self.problem.fields(at, self.points, order)

    def values(self, rows: IntArray, y: Array, potential: Array) -> Array:
        """``f_rows[k](y_k)`` given ``V(y_k)``."""
        total = potential.copy()
        for anchor in self.anchors:
            factor = anchor.coefficient / (2 * self.problem.step)
            total += factor * anchor.cost.pairs(rows, y)
        return total

    def gradient(self, rows: IntArray, y: Array, fields: Fields) -> Array:
        """Gradient of ``f_rows[k]`` at ``y_k``, shape (K, d)."""
        total = fields.gradient
        for anchor in self.anchors:
            factor = anchor.coefficient / (2 * self.problem.step)
            total = total + factor * anchor.cost.gradient(rows, y)
        return total

    def stiffness(self, rows: IntArray) -> Array:
        """``|sum_m gamma_m beta_m,i| / tau`` of the given tokens."""
        total = sum(
            (anchor.coefficient * anchor.cost.mobility[rows] for anchor in self.anchors),
            np.zeros(rows.size),
        )
        return np.abs(total) / self.problem.step

    def minimise(
        self, rows: IntArray, start: Array, iterations: int = 40, tolerance: float = 1e-12
    ) -> tuple[Array, Array]:
        """Local minima of ``f_rows[k]`` from ``start`` (K, d), by damped Newton, monotone.

        Returns the points (K, d) and their values (K,).
        """
        order = pass_order(start.shape[1])
        y = start.copy()
        fields = self.fields(y, order)
        value = self.values(rows, y, fields.first_variation)
        length = np.ones(rows.size)
        scale = np.maximum(np.abs(value), 1.0)
        gradient = self.gradient(rows, y, fields)
        active = np.ones(rows.size, dtype=bool)
        for _ in range(iterations):
            size = np.sqrt(np.einsum("kd,kd->k", gradient, gradient))
            active &= (size > tolerance * scale) & (length > 1e-8)
            if not active.any():
                break
            direction = self._direction(rows, y, fields, gradient, order)
            trial = sphere.exp(y, (length * active)[:, None] * direction)
            trial_fields = self.fields(trial, order)
            trial_value = self.values(rows, trial, trial_fields.first_variation)
            trial_gradient = self.gradient(rows, trial, trial_fields)
            smaller = np.einsum("kd,kd->k", trial_gradient, trial_gradient) < size**2
            noise = 8 * np.finfo(float).eps * scale
            better = active & (
                (trial_value < value) | ((trial_value <= value + noise) & smaller)
            )
            y = np.where(better[:, None], trial, y)
            value = np.where(better, trial_value, value)
            gradient = np.where(better[:, None], trial_gradient, gradient)
            length = np.where(better, np.minimum(1, 2 * length), length / 4)
            if better.any():
                fields = trial_fields if better.all() else self.fields(y, order)
        return y, value

    def _direction(
        self, rows: IntArray, y: Array, fields: Fields, gradient: Array, order: int
    ) -> Array:
        stiffness = self.stiffness(rows)
        if order == 1:
            direction = -gradient / stiffness[:, None]
        else:
            form, scale = fields.ambient_hessian()
            for anchor in self.anchors:
                factor = anchor.coefficient / (2 * self.problem.step)
                back = any_log(y, anchor.cost.points[rows])
                along, across = anchor.cost.curvature(rows, back)
                square = back[:, :, None] * back[:, None, :]
                form = form + (factor * along)[:, None, None] * square
                scale = scale + factor * across
            hessian = sphere.restrict(y, form, scale, stiffness)
            values, vectors = np.linalg.eigh(hessian)
            values = np.maximum(np.abs(values), 1e-3 * stiffness[:, None])
            coordinates = np.einsum("kij,ki->kj", vectors, gradient) / values
            direction = -np.einsum("kij,kj->ki", vectors, coordinates)
        size = np.linalg.norm(direction, axis=1, keepdims=True)
        direction = direction * np.minimum(1, LONGEST_MOVE / np.maximum(size, 1e-300))
        return sphere.project(y, direction)
