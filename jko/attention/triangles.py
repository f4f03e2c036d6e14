"""Symmetric matrices kept as their upper triangles, row by row."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

__all__ = ["conjugations", "from_triangle", "upper_triangle"]

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]


@lru_cache(maxsize=8)
def upper_triangle(dim: int) -> tuple[IntArray, IntArray]:
    """Rows and columns of the entries."""
    i, j = np.triu_indices(dim)
    return i, j


@lru_cache(maxsize=8)
def _places(dim: int) -> IntArray:
    """Place in the triangle of every entry of the matrix, (d d,)."""
    i, j = upper_triangle(dim)
    place = np.empty((dim, dim), dtype=np.intp)
    place[i, j] = place[j, i] = np.arange(i.size)
    return place.ravel()


def from_triangle(packed: Array) -> Array:
    """Matrices (..., d, d) of triangles (..., d (d + 1) / 2)."""
    dim = (isqrt(1 + 8 * packed.shape[-1]) - 1) // 2
    return packed.take(_places(dim), axis=-1).reshape(*packed.shape[:-1], dim, dim)


def conjugations(matrices: Array) -> Array:
    """The linear maps ``S -> D S D`` of symmetric D (H, d, d), between triangles: (H, K, K).

    A row of triangles is multiplied with them from the right.
    """
    i, j = upper_triangle(matrices.shape[1])
    # D (e_k e_l^T + e_l e_k^T) D, and D e_k e_k^T D on the diagonal
    left, right = matrices[:, i], matrices[:, j]
    product = left[:, :, i] * right[:, :, j] + left[:, :, j] * right[:, :, i]
    product[:, i == j] /= 2
    return product
