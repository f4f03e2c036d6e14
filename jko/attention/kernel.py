r"""The kernel sums everything else is made of, evaluated densely in tiles.

For sources :math:`\mu = \sum_j a_j \delta_{y_j}` and a head :math:`D_h`, at any points ``x``:

.. math::

    b_h(x) = \sum_j a_j e^{\langle x, D_h y_j\rangle}, \qquad
    m_h(x) = \frac{1}{b_h(x)} \sum_j a_j e^{\langle x, D_h y_j\rangle} y_j, \qquad
    S_h(x) = \frac{1}{b_h(x)} \sum_j a_j e^{\langle x, D_h y_j\rangle} y_j y_j^T.

The sums of strong heads are kept relative to their largest term, so that the logarithm of the
mobility and the moments never overflow.

The sums run through `compiled` code where it was built and the dimension is 2, 3 or 4, and
through numpy's products in `tiles` elsewhere.  Heads are symmetric, so where the targets are the
sources half of the exponentials are saved.  The order in which terms are added depends on the
problem alone: results are the same to the last bit on any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled_sums, is_compiled
from .tiles import row_sums, tiled_sums
from .triangles import from_triangle, upper_triangle

__all__ = ["TOKEN_BLOCK", "DenseKernel", "Kernel", "KernelSums"]

Array = NDArray[np.float64]

#: Tokens handled at once where arrays per head would be temporaries.
TOKEN_BLOCK = 4096

#: Heads up to this norm need no shift: exp(+-300) and its sums are ordinary doubles.
UNSHIFTED_NORM = 300.0


@dataclass(frozen=True, kw_only=True)
class KernelSums:
    r"""Kernel sums of one measure at ``m`` points for ``H`` heads.

    Attributes
    ----------
    order : int
        0: mobilities; 1: and means; 2: and second moments.
    totals : (H, m, columns)
        :math:`\sum_j a_j e^{\langle x, D_h y_j\rangle - s}\,(1, y_j, y_j y_j^T)` up to the order, of the last the
        upper triangle row by row.
    shift : (H, m) or None
        The shifts ``s``, where some head needs them to stay within double precision.
    """

    order: int
    totals: Array
    shift: Array | None = None

    @cached_property
    def log_mobility(self) -> Array:
        """``log b_h``, shape (H, m)."""
        logs = np.log(self.totals[..., 0])
        return logs if self.shift is None else logs + self.shift

    @property
    def mean(self) -> Array:
        """Softmax mean ``m_h``, shape (H, m, d)."""
        if self.order < 1:
            raise ValueError("the sums were evaluated at order 0: no means")
        return self.totals[..., 1 : self._dim + 1] / self.totals[..., :1]

    @property
    def second_moment(self) -> Array:
        """Softmax second moment ``S_h``, shape (H, m, d, d)."""
        if self.order < 2:
            raise ValueError("the sums were evaluated below order 2: no second moments")
        return from_triangle(self.totals[..., self._dim + 1 :] / self.totals[..., :1])

    @property
    def _dim(self) -> int:
        columns = self.totals.shape[2] - 1
        return columns if self.order == 1 else (isqrt(9 + 8 * columns) - 3) // 2

    def contracted(self, maps: Array) -> Array:
        """``sum_h totals_h maps_h``, with the shifts undone, shape (m, columns).

        Infinite or not a number where that overflows.
        """
        _, count, columns = self.totals.shape
        result = np.empty((count, columns))
        for start in range(0, count, TOKEN_BLOCK):
            part = slice(start, start + TOKEN_BLOCK)
            totals = self.totals[:, part]
            if self.shift is not None:
                totals = totals * np.exp(self.shift[:, part, None])
            np.matmul(totals, maps).sum(axis=0, out=result[part])
        return result


class Kernel(Protocol):
    """An evaluator of kernel sums."""

    def sums(
        self, at: Array, points: Array, weights: Array, matrices: Array, order: int
    ) -> KernelSums:
        """Sums up to ``order`` at ``at`` (m, d), over ``points`` (n, d) of ``weights`` (n,)."""
        ...


@dataclass(frozen=True)
class DenseKernel:
    """Direct summation, ``m n H`` exponentials in tiles; memory ``O(n)`` beside the result.

    Half as many where ``at is points``.

    Parameters
    ----------
    threads : int, optional
        At most this many; the processors available to this process by default.  The result
        does not depend on it.
    """

    threads: int | None = None

    def sums(
        self, at: Array, points: Array, weights: Array, matrices: Array, order: int
    ) -> KernelSums:
        """Sums up to ``order`` at ``at`` (m, d), over ``points`` (n, d) of ``weights`` (n,)."""
        payload = moment_payload(points, weights, order)
        strong = exceeds(matrices, UNSHIFTED_NORM)
        if not strong.any():
            totals = exponential_sums(at, points, payload, matrices, self.threads)
            return KernelSums(order=order, totals=totals)
        totals = np.empty((*strong.shape, at.shape[0], payload.shape[1]))
        shift = np.zeros((*strong.shape, at.shape[0], 1))
        if not strong.all():
            totals[~strong] = exponential_sums(at, points, payload, matrices[~strong], self.threads)
        charged = weights > 0
        points, logs = points[charged], np.log(weights[charged])
        payload = moment_payload(points, np.ones_like(logs), order)
        totals[strong], shift[strong] = row_sums(
            at, points, payload, matrices[strong], self.threads, logs
        )
        return KernelSums(order=order, totals=totals, shift=shift[..., 0])


def exceeds(matrices: Array, bound: float) -> NDArray[np.bool_]:
    """Which heads have a spectral norm above ``bound`` (the Frobenius norm settles most)."""
    if np.vdot(matrices, matrices) <= bound**2:
        return np.zeros(matrices.shape[0], dtype=bool)
    exceeds = np.linalg.norm(matrices, axis=(1, 2)) > bound
    if exceeds.any():
        exceeds[exceeds] = np.abs(np.linalg.eigvalsh(matrices[exceeds])).max(axis=1) > bound
    return exceeds


def payload_columns(dim: int, order: int) -> int:
    """Columns of `moment_payload`."""
    return (1, 1 + dim, 1 + dim + dim * (dim + 1) // 2)[order]


def moment_payload(points: Array, weights: Array, order: int) -> Array:
    """Columns ``a (1, y, y y^T upper triangle)`` that the exponentials are multiplied with."""
    count, dim = points.shape
    payload = np.empty((count, payload_columns(dim, order)))
    payload[:, 0] = 1
    if order >= 1:
        payload[:, 1 : 1 + dim] = points
    if order >= 2:
        i, j = upper_triangle(dim)
        np.multiply(points[:, i], points[:, j], out=payload[:, 1 + dim :])
    payload *= weights[:, None]
    return payload


def exponential_sums(
    at: Array, points: Array, payload: Array, matrices: Array, threads: int | None = None
) -> Array:
    r"""Plain sums :math:`\sum_j e^{\langle x, D_h y_j\rangle} c_j`, shape (H, m, columns).

    For heads of norm up to `UNSHIFTED_NORM`; ``payload`` holds the rows ``c_j``, of any sign.
    """
    if is_compiled(points.shape[1], payload.shape[1]):
        return compiled_sums(at, points, payload, matrices, threads)
    return tiled_sums(at, points, payload, matrices, threads)
