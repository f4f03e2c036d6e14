r"""Curvature of the energy on a fixed support: its convex and its concave part.

Measures have the same mass, so only mean-zero vectors matter: with ``Q`` the projection on them,

.. math::  Q K Q = L L^T - N N^T ,

``L`` and ``N`` of low numerical rank because the kernel is analytic.  The energy is convex iff ``N`` is
empty.  A kernel :math:`e^{\langle x, D y\rangle}` with ``D`` positive semidefinite is positive definite on any
points (Schur product theorem); then ``L`` comes from a pivoted Cholesky factorisation, which costs
:math:`O(m r^2)` for rank ``r`` and no eigenvalue at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...attention.heads import Heads

__all__ = ["Curvature", "curvature"]

Array = NDArray[np.float64]

#: Modes below this fraction of the largest diagonal entry (or eigenvalue) stay out of the
#: factors.  What they leave out is seen by the gap, which is computed with ``K`` itself.
RANK_TOLERANCE = 1e-10

#: Eigenvalues above minus this times the largest are zero up to rounding.
ZERO_TOLERANCE = 64 * float(np.finfo(float).eps)


@dataclass(frozen=True, kw_only=True, eq=False)
class Curvature:
    """The split of a kernel matrix on mean-zero vectors.

    Attributes
    ----------
    convex_factor : (m, r)
        ``L``; empty if the energy is concave.
    concave_factor : (m, s)
        ``N``; empty if and only if the energy is convex.
    lowest : float
        Smallest eigenvalue on mean-zero vectors (zero where semidefiniteness is a theorem).
    """

    convex_factor: Array
    concave_factor: Array
    lowest: float

    @property
    def convex(self) -> bool:
        """Whether the energy is convex in the measure."""
        return self.concave_factor.shape[1] == 0

    @property
    def linear_step(self) -> bool:
        """Whether a majorised step is one argmin per source: no convex part to keep."""
        return self.convex_factor.shape[1] == 0

    def excess(self, measure: Array) -> float:
        r"""How far a zero gap may be from the global minimum: :math:`\frac12\max_j |N^T(e_j - \nu)|^2`.

        For any ``nu'``, :math:`\Phi(\nu') \ge \Phi(\nu) - gap - \frac12 |N^T(\nu' - \nu)|^2`, and the last term is
        convex in ``nu'``, hence largest at a single node.  Zero for a convex energy.
        """
        if self.convex:
            return 0.0
        shifted = self.concave_factor - measure @ self.concave_factor
        return 0.5 * float(np.einsum("js,js->j", shifted, shifted).max())


def curvature(kernel: Array, heads: Heads, sign: int) -> Curvature:
    """Split the kernel matrix of the given heads."""
    centered = _centered(kernel)
    nothing = np.zeros((kernel.shape[0], 0))
    if heads.vanish or kernel.shape[0] == 1:
        return Curvature(convex_factor=nothing, concave_factor=nothing, lowest=0.0)
    if heads.positive_semidefinite and sign > 0:
        factor = pivoted_cholesky(centered)
        return Curvature(convex_factor=factor, concave_factor=nothing, lowest=0.0)
    if heads.positive_semidefinite:
        factor = pivoted_cholesky(-centered)
        lowest = -float(np.linalg.eigvalsh(factor.T @ factor).max(initial=0.0))
        return Curvature(convex_factor=nothing, concave_factor=factor, lowest=lowest)
    values, vectors = np.linalg.eigh(centered)
    size = float(np.abs(values).max())
    up = values > RANK_TOLERANCE * size
    down = values < -ZERO_TOLERANCE * size
    return Curvature(
        convex_factor=vectors[:, up] * np.sqrt(values[up]),
        concave_factor=vectors[:, down] * np.sqrt(-values[down]),
        lowest=float(values[0]),
    )


def _centered(kernel: Array) -> Array:
    """``Q K Q``."""
    mean = kernel.mean(axis=0)
    return kernel - mean - mean[:, None] + mean.mean()


def pivoted_cholesky(matrix: Array) -> Array:
    """``L`` (m, r) with ``L L^T`` equal to a positive semidefinite matrix up to `RANK_TOLERANCE`."""
    diagonal = matrix.diagonal().copy()
    floor = RANK_TOLERANCE * diagonal.max()
    factor = np.empty((64, matrix.shape[0]))
    count = 0
    while count < matrix.shape[0]:
        pivot = int(diagonal.argmax())
        if diagonal[pivot] <= floor:
            break
        if count == factor.shape[0]:
            factor = np.concatenate([factor, np.empty_like(factor)])
        rows = factor[:count]
        row = (matrix[pivot] - rows[:, pivot] @ rows) / np.sqrt(diagonal[pivot])
        factor[count] = row
        diagonal -= row**2
        diagonal[pivot] = 0
        count += 1
    return factor[:count].T.copy()
