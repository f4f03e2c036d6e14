r"""Constants of the first variation that proofs rest on.

For one source ``y`` and head ``D`` put ``v = D y``, ``r = |v|``, and at a point ``x`` of the sphere
``c = <x, v>``, ``q = |P_x v| = sqrt(r^2 - c^2)``.  The function :math:`g(x) = e^{\langle x, v\rangle}` has,
along unit tangent vectors ``u``,

.. math::

    |\nabla g| = e^c q, \qquad \mathrm{Hess}\, g(u, u) = e^c (\langle u, v\rangle^2 - c), \qquad
    |\nabla \mathrm{Hess}\, g| \le e^c q\,(q^2 + 3|c| + 1),

the last along a geodesic with parallel transported ``u``.  Maximising over ``c`` in [-r, r] and
summing over heads and sources bounds V and its derivatives over the whole sphere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..attention.heads import Heads

__all__ = ["PotentialBounds", "source_strengths"]

Array = NDArray[np.float64]

#: Cells of the tables below; their rounding up costs a factor of about exp(2 r / cells).
SCORE_CELLS = 400
STRENGTH_CELLS = 200


@dataclass(frozen=True, kw_only=True)
class PotentialBounds:
    r"""Bounds on the first variation ``V`` of one measure, over the whole sphere.

    Attributes
    ----------
    lower : float
        :math:`V \ge` this.
    lipschitz : float
        :math:`|\nabla V| \le` this.
    concavity : float
        :math:`\mathrm{Hess}\, V \ge -` this.
    hessian_lipschitz : float
        Lipschitz constant of the Hessian along geodesics; infinite where it was not asked for.
    """

    lower: float
    lipschitz: float
    concavity: float
    hessian_lipschitz: float

    @classmethod
    def of_measure(
        cls, points: Array, weights: Array, heads: Heads, sign: int, third: bool = True
    ) -> PotentialBounds:
        """From ``r = |D_h y_j|`` of every head and source: O(n H).

        ``third``: whether to bound the third derivatives, which takes a large table.
        """
        strengths = source_strengths(points, heads)
        mass = heads.weights[:, None] * weights
        peak = _gradient_peak(strengths)
        if sign > 0:
            lower = float((mass * np.exp(-strengths)).sum())
            concavity = float((mass * strengths * np.exp(strengths)).sum())
        else:
            lower = -float((mass * np.exp(strengths)).sum())
            concavity = float((mass * _tabulated(strengths, _convexity_density)).sum())
        steepest = np.inf
        if third:
            steepest = float((mass * _tabulated(strengths, _third_density)).sum())
        return cls(
            lower=lower,
            lipschitz=float((mass * peak).sum()),
            concavity=concavity,
            hessian_lipschitz=steepest,
        )


def source_strengths(points: Array, heads: Heads) -> Array:
    """``|D_h y_j|``, shape (H, n)."""
    moved = np.matmul(points, heads.matrices)
    return np.sqrt(np.einsum("hnd,hnd->hn", moved, moved))


def _gradient_peak(r: Array) -> Array:
    """``max_c e^c q``, attained where ``c^2 + c = r^2``."""
    # the root of c^2 + c = r^2, without cancellation for small r
    c = 2 * r**2 / (1 + np.sqrt(1 + 4 * r**2))
    return np.exp(c) * np.sqrt(c)


def _convexity_density(r: Array, low: Array, high: Array) -> Array:
    """Upper bound of ``e^c (q^2 - c)`` for ``c`` in [low, high]: the largest Hessian of g."""
    nearest = np.clip(0.0, low, high)
    value = r**2 - nearest**2 - low
    return np.where(value > 0, np.exp(high), np.exp(low)) * value


def _third_density(r: Array, low: Array, high: Array) -> Array:
    """Upper bound of ``e^c q (q^2 + 3|c| + 1)`` for ``c`` in [low, high]."""
    nearest = np.clip(0.0, low, high)
    q_squared = np.maximum(r**2 - nearest**2, 0)
    farthest = np.maximum(np.abs(low), np.abs(high))
    return np.exp(high) * np.sqrt(q_squared) * (q_squared + 3 * farthest + 1)


def _tabulated(strengths: Array, density: object) -> Array:
    """Maximum over ``c`` in [-r, r] of a density that increases with ``r``, rounded up."""
    top = float(strengths.max(initial=0.0))
    if top == 0:
        return np.zeros_like(strengths)
    grid = top * np.linspace(0, 1, STRENGTH_CELLS + 1)
    edges = np.linspace(-1, 1, SCORE_CELLS + 1)
    r = grid[:, None]
    low, high = r * edges[:-1], r * edges[1:]
    with np.errstate(over="ignore", invalid="ignore"):
        table = np.maximum(density(r, low, high).max(axis=1), 0)  # type: ignore[operator]
    index = np.ceil(strengths / top * STRENGTH_CELLS * (1 - 1e-12)).astype(int)
    return table[np.clip(index, 0, STRENGTH_CELLS)]
