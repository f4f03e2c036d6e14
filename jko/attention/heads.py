r"""Attention heads at one time: a probability measure :math:`\Theta = \sum_h w_h \delta_{D_h}`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import (
    as_array,
    finite_array,
    frozen,
    positive_integer,
    probability_weights,
)
from .triangles import conjugations

__all__ = ["Heads"]

Array = NDArray[np.float64]

#: Relative asymmetry that is taken for rounding (float32 included) and symmetrised silently.
SYMMETRY_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Heads:
    r"""Symmetric head matrices :math:`D_h` with head weights :math:`w_h`.

    Validated and immutable.

    Parameters
    ----------
    matrices : (H, d, d) array_like
        Symmetric matrices; one (d, d) matrix is taken as a single head.
    weights : (H,) array_like, optional
        Nonnegative, summing to 1.  Uniform by default.

    Raises
    ------
    ValueError, TypeError
        Naming what is wrong; for a matrix that is not symmetric, the index, the size of its
        antisymmetric part and what symmetrising changes.
    """

    matrices: Array
    weights: Array

    def __init__(self, matrices: ArrayLike, weights: ArrayLike | None = None) -> None:
        raw = as_array(matrices, "matrices")
        matrices = finite_array(raw[None] if raw.ndim == 2 else raw, "matrices", 3)
        count, rows, columns = matrices.shape
        if count == 0 or rows != columns or rows < 2:
            raise ValueError(
                f"matrices must have shape (H, d, d) with H >= 1 and d >= 2, got {raw.shape}"
            )
        transposed = matrices.transpose(0, 2, 1)
        asymmetry = np.abs(matrices - transposed).max(axis=(1, 2)) / 2
        scale = np.abs(matrices).max(axis=(1, 2))
        bad = asymmetry > SYMMETRY_TOLERANCE * scale
        if bad.any():
            index = int(np.argmax(np.where(bad, asymmetry, 0)))
            raise ValueError(
                f"matrices[{index}] must be symmetric, its antisymmetric part reaches "
                f"{asymmetry[index]:.3g}. Heads.symmetrized(matrices) replaces D by (D + D^T)/2: "
                "that keeps <x, D x> and changes <x, D y> for x != y by the antisymmetric part, "
                "so the attention scores change and the flow is another one"
            )
        object.__setattr__(self, "matrices", frozen((matrices + transposed) / 2))
        object.__setattr__(
            self, "weights", frozen(probability_weights(weights, count, "weights"))
        )

    @property
    def count(self) -> int:
        """Number of heads H."""
        return int(self.matrices.shape[0])

    @property
    def dim(self) -> int:
        """Dimension d."""
        return int(self.matrices.shape[1])

    @cached_property
    def eigenvalues(self) -> Array:
        """Eigenvalues of every head, ascending, shape (H, d)."""
        return frozen(np.asarray(np.linalg.eigvalsh(self.matrices), dtype=float))

    def contraction(self, order: int) -> Array:
        """The maps ``(b, y, S) -> w_h (b, D_h y, D_h S D_h)`` up to the order, from the right.

        On rows of ``1 + d`` or, with the upper triangle of S, ``1 + d + d (d + 1) / 2`` numbers:
        shape (H, columns, columns).
        """
        if order == 0:
            return self.weights[:, None, None]
        return self._first_contraction if order == 1 else self._second_contraction

    @cached_property
    def _first_contraction(self) -> Array:
        maps = np.zeros((self.count, 1 + self.dim, 1 + self.dim))
        maps[:, 0, 0] = 1
        maps[:, 1:, 1:] = self.matrices
        return frozen(self.weights[:, None, None] * maps)

    @cached_property
    def _second_contraction(self) -> Array:
        first = self._first_contraction
        small, size = first.shape[1], first.shape[1] + self.dim * (self.dim + 1) // 2
        maps = np.zeros((self.count, size, size))
        maps[:, :small, :small] = first
        maps[:, small:, small:] = self.weights[:, None, None] * conjugations(self.matrices)
        return frozen(maps)

    @cached_property
    def displacements(self) -> Array:
        """The maps ``(v, v y^T) -> (D_h v, D_h v y^T D_h)`` from the right: (H, d (1 + d), (1 + d) d).

        From entries ``v_i (1, y)_k`` to a vector and the rows of a matrix.
        """
        dim, matrices = self.dim, self.matrices
        maps = np.zeros((self.count, dim, 1 + dim, 1 + dim, dim))
        maps[:, :, 0, 0] = matrices
        maps[:, :, 1:, 1:] = np.einsum("hpq,hrs->hqrps", matrices, matrices)
        return frozen(maps.reshape(self.count, dim * (1 + dim), (1 + dim) * dim))

    @cached_property
    def norms(self) -> Array:
        """Spectral norms ``|D_h|``, shape (H,)."""
        return frozen(np.abs(self.eigenvalues).max(axis=1))

    @cached_property
    def positive_semidefinite(self) -> bool:
        """Whether every head of positive weight is positive semidefinite (to rounding)."""
        active = self.eigenvalues[self.weights > 0]
        scale = np.abs(active).max(axis=1, initial=0)
        return bool((active[:, 0] >= -8 * self.dim * np.finfo(float).eps * scale).all())

    @cached_property
    def vanish(self) -> bool:
        """Whether every head of positive weight is the zero matrix."""
        return not self.matrices[self.weights > 0].any()

    def __repr__(self) -> str:
        return f"Heads(count={self.count}, dim={self.dim}, max_norm={self.norms.max():.4g})"

    @classmethod
    def symmetrized(cls, matrices: ArrayLike, weights: ArrayLike | None = None) -> Heads:
        """The heads ``(D + D^T) / 2`` of arbitrary square matrices."""
        raw = as_array(matrices, "matrices")
        raw = finite_array(raw[None] if raw.ndim == 2 else raw, "matrices", 3)
        if raw.shape[1] != raw.shape[2]:
            raise ValueError(f"matrices must be square, got shape {raw.shape}")
        return cls((raw + raw.transpose(0, 2, 1)) / 2, weights)

    @classmethod
    def gaussian(
        cls, count: int, dim: int = 3, rng: np.random.Generator | int | None = None
    ) -> Heads:
        """The article's initial heads ``Z + Z^T`` with standard normal Z."""
        count = positive_integer(count, "count")
        dim = positive_integer(dim, "dim", 2)
        z = np.random.default_rng(rng).standard_normal((count, dim, dim))
        return cls(z + z.transpose(0, 2, 1))
