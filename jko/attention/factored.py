r"""Heads of low rank, kept as factors: :math:`D_h = \tfrac12 (L_h^T R_h + R_h^T L_h)`.

The heads of a trained network are products of a query and a key matrix of ``r`` rows, far fewer
than the dimension ``d``.  `FactoredHeads` and `FactoredPath` are ordinary heads and an ordinary
piecewise linear path that form the ``(H, d, d)`` matrices only when somebody asks for them.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import finite_array, frozen, probability_weights
from .heads import Heads
from .weights import Interpolated

__all__ = ["FactoredHeads", "FactoredPath"]

Array = NDArray[np.float64]


def symmetric_product(left: Array, right: Array) -> Array:
    """``(L^T R + R^T L) / 2`` of stacks (..., r, d): symmetric to the last bit, (..., d, d)."""
    product = np.matmul(left.swapaxes(-1, -2), right)
    return (product + product.swapaxes(-1, -2)) / 2


class FactoredHeads(Heads):
    r"""Heads :math:`D_h = \frac12 (L_h^T R_h + R_h^T L_h)` of rank at most ``2 r``.

    Parameters
    ----------
    left, right : (H, r, d) array_like
    weights : (H,) array_like, optional
        As in `Heads`.

    Raises
    ------
    ValueError, TypeError
        For arrays that are not finite, or of different shapes.
    """

    left: Array
    right: Array

    def __init__(
        self, left: ArrayLike, right: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        left, right = finite_array(left, "left", 3), finite_array(right, "right", 3)
        if left.shape != right.shape or 0 in left.shape or left.shape[2] < 2:
            raise ValueError(
                "left and right must have the same shape (H, r, d) with H, r >= 1 and d >= 2, "
                f"got {left.shape} and {right.shape}"
            )
        self._keep(left, right, probability_weights(weights, left.shape[0], "weights"))

    def _keep(self, left: Array, right: Array, weights: Array) -> None:
        for name, array in (("left", left), ("right", right), ("weights", weights)):
            object.__setattr__(self, name, frozen(array))

    @classmethod
    def trusted(cls, left: Array, right: Array, weights: Array) -> FactoredHeads:
        """The same without the checks, for arrays that come from checked ones."""
        heads = cls.__new__(cls)
        heads._keep(left, right, weights)
        return heads

    @cached_property
    def matrices(self) -> Array:
        """The matrices themselves, shape (H, d, d)."""
        return frozen(symmetric_product(self.left, self.right))

    @property
    def count(self) -> int:
        return int(self.left.shape[0])

    @property
    def dim(self) -> int:
        return int(self.left.shape[2])

    @cached_property
    def eigenvalues(self) -> Array:
        r"""Eigenvalues (H, d), from an orthonormal basis of the rows of L and R.

        With :math:`[L; R]^T = Q T`, :math:`D = Q\, T J T^T Q^T / 2` and J the exchange of the two blocks.
        """
        rows = np.concatenate([self.left, self.right], axis=1)
        triangle = np.linalg.qr(rows.swapaxes(1, 2))[1]
        exchanged = np.roll(triangle, self.left.shape[1], axis=2)
        small = np.linalg.eigvalsh(exchanged @ triangle.swapaxes(1, 2) / 2)
        values = np.zeros((self.count, self.dim))
        values[:, : small.shape[1]] = small
        return frozen(np.sort(values, axis=1))

    def coordinates(self, points: Array) -> tuple[Array, Array]:
        """``L_h x`` and ``R_h x`` of points (n, d), each of shape (H, n, r)."""
        count, rank, dim = self.left.shape

        def apply(factor: Array) -> Array:
            flat = points @ factor.reshape(count * rank, dim).T
            return flat.reshape(-1, count, rank).transpose(1, 0, 2)

        return apply(self.left), apply(self.right)


class FactoredPath(Interpolated):
    r"""Factored heads at layer times, linear in between *in the matrices*.

    :math:`D_h(t) = (1-s) D_{h,k} + s D_{h,k+1}` is itself factored: the factors of both layers side by
    side, those on the left scaled by ``1 - s`` and ``s``.

    Parameters
    ----------
    times : (K,) array_like
        Strictly increasing.
    left, right : (K, H, r, d) array_like
        Factors at those times.
    weights : (H,) array_like, optional
        Head weights, the same at all times.

    Raises
    ------
    ValueError
        On construction for invalid arrays; on a call outside ``[times[0], times[-1]]``.
    """

    def __init__(
        self,
        times: ArrayLike,
        left: ArrayLike,
        right: ArrayLike,
        weights: ArrayLike | None = None,
    ) -> None:
        self.times = frozen(finite_array(times, "times", 1))
        left, right = finite_array(left, "left", 4), finite_array(right, "right", 4)
        if self.times.size == 0 or (np.diff(self.times) <= 0).any():
            raise ValueError("times must be strictly increasing and not empty")
        if left.shape != right.shape or left.shape[0] != self.times.size:
            raise ValueError(
                f"left and right must have the same shape ({self.times.size}, H, r, d), one layer "
                f"per time, got {left.shape} and {right.shape}"
            )
        self.left, self.right = frozen(left), frozen(right)
        self.weights = FactoredHeads(left[0], right[0], weights).weights
        self._pairs = frozen(np.concatenate([right[:-1], right[1:]], axis=2))
        self._rates: dict[int, FactoredHeads] = {}

    @cached_property
    def matrices(self) -> Array:  # type: ignore[override]
        """The matrices at the layer times, shape (K, H, d, d), formed on demand."""
        return frozen(symmetric_product(self.left, self.right))

    @property
    def dim(self) -> int:
        return int(self.left.shape[3])

    def _blend(self, piece: int, first: float, second: float) -> FactoredHeads:
        """``first D_k + second D_{k+1}`` on a piece."""
        left = np.concatenate([first * self.left[piece], second * self.left[piece + 1]], axis=1)
        return FactoredHeads.trusted(left, self._pairs[piece], self.weights)

    def __call__(self, t: float) -> FactoredHeads:
        k = self._locate(t)
        if self.times.size == 1:
            return FactoredHeads.trusted(self.left[0], self.right[0], self.weights)
        s = (t - self.times[k]) / (self.times[k + 1] - self.times[k])
        return self._blend(k, 1 - s, s)

    def derivative(self, t: float) -> Array:
        return self._rate(self._locate(t)).matrices

    def _rate(self, piece: int) -> FactoredHeads:
        """The constant time derivative on a piece."""
        if piece not in self._rates:
            if self.times.size == 1:
                rate = FactoredHeads.trusted(0 * self.left[0], self.right[0], self.weights)
            else:
                speed = 1 / float(self.times[piece + 1] - self.times[piece])
                rate = self._blend(piece, -speed, speed)
            self._rates[piece] = rate
        return self._rates[piece]

    def factored_rate(self, derivative: Array) -> FactoredHeads | None:
        """The rate whose matrices are this very array, if ``derivative`` gave it."""
        return next((rate for rate in self._rates.values() if rate.matrices is derivative), None)
