r"""Hierarchical cells of the circle and the sphere, for branch and bound.

A cell is a spherical simplex (arc or triangle); it lies in the cap around its center whose
radius is the largest distance to a vertex.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import sphere

__all__ = ["Cells"]

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells given by their vertices, shape (N, d, d): ``d`` vertices each, d = 2 or 3."""

    vertices: Array

    @classmethod
    def cover(cls, dim: int, level: int) -> Cells:
        """The whole sphere: the cross-polytope's facets, ``level`` times subdivided."""
        basis = np.eye(dim)
        signs = np.array(np.meshgrid(*[[1.0, -1.0]] * dim, indexing="ij")).reshape(dim, -1).T
        cells = cls(signs[:, :, None] * basis[None])
        for _ in range(level):
            cells = cells.subdivided()
        return cells

    @property
    def centers(self) -> Array:
        """Normalised vertex sums, shape (N, d)."""
        return sphere.normalize(self.vertices.sum(axis=1))

    @property
    def radii(self) -> Array:
        """Largest distance from the center to a vertex, rounded up, shape (N,)."""
        distances = sphere.distance(self.centers[:, None], self.vertices)
        return distances.max(axis=1) * (1 + 1e-12) + 1e-15

    def subdivided(self) -> Cells:
        """Halves of arcs, quarters of triangles; child ``k`` of cell ``i`` at ``i * children + k``."""
        v = self.vertices
        if v.shape[1] == 2:
            middle = sphere.midpoint(v[:, 0], v[:, 1])
            children: list[tuple[Array, ...]] = [(v[:, 0], middle), (middle, v[:, 1])]
        else:
            ab, bc, ca = (sphere.midpoint(v[:, i], v[:, (i + 1) % 3]) for i in range(3))
            children = [
                (v[:, 0], ab, ca),
                (ab, v[:, 1], bc),
                (ca, bc, v[:, 2]),
                (ab, bc, ca),
            ]
        stacked = np.stack([np.stack(child, axis=1) for child in children], axis=1)
        return Cells(stacked.reshape(-1, *v.shape[1:]))

    def take(self, index: IntArray) -> Cells:
        """The cells with the given indices."""
        return Cells(self.vertices[index])
