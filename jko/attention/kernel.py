r"""The kernel sums everything else is made of, evaluated densely in tiles.

For sources :math:`\mu = \sum_j a_j \delta_{y_j}` and a head :math:`D_h`, at any points ``x``:

.. math::

    b_h(x) = \sum_j a_j e^{\langle x, D_h y_j\rangle}, \qquad
    m_h(x) = \frac{1}{b_h(x)} \sum_j a_j e^{\langle x, D_h y_j\rangle} y_j, \qquad
    S_h(x) = \frac{1}{b_h(x)} \sum_j a_j e^{\langle x, D_h y_j\rangle} y_j y_j^T.

The mobility is kept as its logarithm and the moments are normalised, so that neither
overflows however strong the head is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["DenseKernel", "Kernel", "KernelSums"]

Array = NDArray[np.float64]

#: Bytes of one tile of exponentials: it stays in the second-level cache between the product
#: that makes it, the exponential and the product that consumes it.
TILE_BYTES = 384 * 1024

#: Heads up to this norm need no shift: exp(+-300) and its sums are ordinary doubles.
UNSHIFTED_NORM = 300.0


@dataclass(frozen=True, kw_only=True)
class KernelSums:
    """Kernel sums of one measure at ``m`` points for ``H`` heads.

    Attributes
    ----------
    log_mobility : (H, m)
        ``log b_h``.
    mean : (H, m, d) or None
        Softmax mean ``m_h`` (order 1 and above).
    second : (H, m, d, d) or None
        Softmax second moment ``S_h`` (order 2).
    """

    log_mobility: Array
    mean: Array | None = None
    second: Array | None = None


class Kernel(Protocol):
    """An evaluator of kernel sums."""

    def sums(
        self, at: Array, points: Array, weights: Array, matrices: Array, order: int
    ) -> KernelSums:
        """Sums at ``at`` (m, d) over sources ``points`` (n, d), ``weights`` (n,), up to ``order``."""
        ...


@dataclass(frozen=True)
class DenseKernel:
    """Direct summation, ``m n H`` exponentials in tiles; memory ``O(n)`` beside the result."""

    tile_bytes: int = TILE_BYTES

    def sums(
        self, at: Array, points: Array, weights: Array, matrices: Array, order: int
    ) -> KernelSums:
        heads, dim = matrices.shape[0], matrices.shape[1]
        count = at.shape[0]
        charged = weights > 0
        if not charged.all():
            points, weights = points[charged], weights[charged]
        # one row per (head, target): all heads share the same source matrix
        rows = np.matmul(at, matrices).reshape(heads * count, dim)
        payload = _payload(points, weights, order)
        tile = max(16, self.tile_bytes // (8 * points.shape[0]))
        shifts = np.abs(np.linalg.eigvalsh(matrices)).max(axis=1) > UNSHIFTED_NORM
        log_mobility = np.empty(heads * count)
        moments = np.empty((heads * count, payload.shape[1] - 1))
        columns = np.ascontiguousarray(points.T)
        buffer = np.empty((min(tile, heads * count), points.shape[0]))
        for start in range(0, heads * count, tile):
            stop = min(start + tile, heads * count)
            scores = np.matmul(rows[start:stop], columns, out=buffer[: stop - start])
            shift = 0.0
            if shifts[start // count : (stop - 1) // count + 1].any():
                shift = scores.max(axis=1)
                scores -= shift[:, None]
            np.exp(scores, out=scores)
            sums = scores @ payload
            log_mobility[start:stop] = shift + np.log(sums[:, 0])
            np.divide(sums[:, 1:], sums[:, :1], out=moments[start:stop])
        return _unpack(log_mobility, moments, heads, count, dim, order)


def _payload(points: Array, weights: Array, order: int) -> Array:
    """Columns ``a (1, y, y y^T upper triangle)`` that the exponentials are multiplied with."""
    parts = [np.ones((points.shape[0], 1))]
    if order >= 1:
        parts.append(points)
    if order >= 2:
        i, j = np.triu_indices(points.shape[1])
        parts.append(points[:, i] * points[:, j])
    return weights[:, None] * np.concatenate(parts, axis=1)


def _unpack(
    log_mobility: Array, moments: Array, heads: int, count: int, dim: int, order: int
) -> KernelSums:
    log_mobility = log_mobility.reshape(heads, count)
    if order == 0:
        return KernelSums(log_mobility=log_mobility)
    mean = moments[:, :dim].reshape(heads, count, dim)
    if order == 1:
        return KernelSums(log_mobility=log_mobility, mean=mean)
    i, j = np.triu_indices(dim)
    second = np.empty((heads * count, dim, dim))
    second[:, i, j] = moments[:, dim:]
    second[:, j, i] = moments[:, dim:]
    return KernelSums(
        log_mobility=log_mobility, mean=mean, second=second.reshape(heads, count, dim, dim)
    )
