r"""Token clouds: probability measures :math:`\mu = \sum_i a_i \delta_{x_i}` on the sphere."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import vonmises_fisher

from . import sphere
from ._validation import (
    finite_array,
    frozen,
    positive_integer,
    positive_number,
    probability_weights,
    require_unit,
)

__all__ = ["TokenCloud"]

Array = NDArray[np.float64]
Rng = np.random.Generator | int | None


@dataclass(frozen=True, eq=False, repr=False, init=False)
class TokenCloud:
    r"""A weighted token cloud :math:`\mu = \sum_i a_i \delta_{x_i}` on :math:`S^{d-1}`.

    Validated and immutable: the arrays are read-only double-precision copies.

    Parameters
    ----------
    points : (n, d) array_like
        Unit vectors, ``n >= 1``, ``d >= 2``.  Norms may be off by float32 rounding (1e-6);
        they are then renormalised.
    weights : (n,) array_like, optional
        Nonnegative, summing to 1.  Uniform by default.  A token of weight zero is a test
        particle: it feels the others and is not felt.

    Raises
    ------
    ValueError, TypeError
        Naming the argument, the index and the value that is wrong.
    """

    points: Array
    weights: Array

    def __init__(self, points: ArrayLike, weights: ArrayLike | None = None) -> None:
        points = finite_array(points, "points", 2)
        n, dim = points.shape
        if n == 0:
            raise ValueError("points must hold at least one token, got shape " f"{points.shape}")
        if dim < 2:
            raise ValueError(f"points must have dimension d >= 2, got shape {points.shape}")
        require_unit(points, "points", "; TokenCloud.normalized divides by the norms")
        object.__setattr__(self, "points", frozen(sphere.normalize(points)))
        object.__setattr__(
            self, "weights", frozen(probability_weights(weights, n, "weights"))
        )

    def _at(self, points: Array) -> TokenCloud:
        """The same weights at other points, which are known to be unit vectors to rounding.

        Normalised as in the constructor, which leaves them as they are when they are read back.
        """
        cloud = object.__new__(TokenCloud)
        object.__setattr__(cloud, "points", frozen(sphere.normalize(points)))
        object.__setattr__(cloud, "weights", self.weights)
        return cloud

    @property
    def n(self) -> int:
        """Number of tokens."""
        return int(self.points.shape[0])

    @property
    def dim(self) -> int:
        """Dimension d of the ambient space."""
        return int(self.points.shape[1])

    def __repr__(self) -> str:
        uniform = np.ptp(self.weights) == 0
        return f"TokenCloud(n={self.n}, dim={self.dim}, weights={'uniform' if uniform else 'given'})"

    @classmethod
    def normalized(cls, points: ArrayLike, weights: ArrayLike | None = None) -> TokenCloud:
        """The cloud of ``points / |points|``, weights divided by their sum; zero vectors are an error."""
        directions = _directions(finite_array(points, "points", 2), "points")
        if weights is None:
            return cls(directions)
        mass = finite_array(weights, "weights", 1)
        largest = mass.max(initial=0.0)
        if not largest > 0:
            raise ValueError("weights must have a positive sum to be divided by it")
        mass /= largest
        # a negative weight is left as it is, for the constructor to name
        return cls(directions, mass / mass.sum() if (mass >= 0).all() else mass)

    @classmethod
    def uniform(cls, n: int, dim: int = 3, rng: Rng = None) -> TokenCloud:
        """``n`` independent uniform tokens on the sphere of R^dim."""
        n = positive_integer(n, "n")
        dim = positive_integer(dim, "dim", 2)
        return cls(sphere.normalize(np.random.default_rng(rng).standard_normal((n, dim))))

    @classmethod
    def von_mises_fisher(
        cls, n: int, mean: ArrayLike, concentration: float, rng: Rng = None
    ) -> TokenCloud:
        r"""``n`` tokens of density proportional to :math:`\exp(\kappa \langle m, x\rangle)`."""
        n = positive_integer(n, "n")
        direction = finite_array(mean, "mean", 1)
        if direction.size < 2:
            raise ValueError(f"mean must have dimension d >= 2, got shape {direction.shape}")
        direction = _directions(direction[None], "mean")[0]
        kappa = positive_number(concentration, "concentration")
        law = vonmises_fisher(direction, kappa)  # type: ignore[arg-type]
        points = np.atleast_2d(law.rvs(n, random_state=np.random.default_rng(rng)))
        return cls(sphere.normalize(points))

    @classmethod
    def clustered(
        cls, n: int, centers: ArrayLike, noise: float = 0.05, rng: Rng = None
    ) -> TokenCloud:
        """``n`` tokens at ``centers`` in turn, with Gaussian noise in R^d, then normalised.

        Parameters
        ----------
        n : int
            Number of tokens; center ``i % len(centers)`` belongs to token ``i``.
        centers : (k, d) array_like
            Cluster centers, normalised here.
        noise : float
            Standard deviation of the noise of every coordinate.
        """
        n = positive_integer(n, "n")
        if noise != 0:
            positive_number(noise, "noise")
        base = finite_array(centers, "centers", 2)
        if base.shape[0] == 0:
            raise ValueError(f"centers must hold at least one center, got shape {base.shape}")
        base = _directions(base, "centers")[np.arange(n) % base.shape[0]]
        shifted = base + noise * np.random.default_rng(rng).standard_normal(base.shape)
        return cls(sphere.normalize(shifted))

    @classmethod
    def cross_polytope(
        cls, n: int, dim: int = 3, noise: float = 0.05, rng: Rng = None
    ) -> TokenCloud:
        """``n`` tokens clustered near the ``2 dim`` vertices of the cross-polytope."""
        dim = positive_integer(dim, "dim", 2)
        return cls.clustered(n, np.concatenate([np.eye(dim), -np.eye(dim)]), noise, rng)

    @classmethod
    def octahedral(cls, n: int, noise: float = 0.05, rng: Rng = None) -> TokenCloud:
        """``n`` tokens near the six vertices of the octahedron: the article's initial cloud on S^2."""
        return cls.cross_polytope(n, 3, noise, rng)

    @classmethod
    def pentagonal(cls, n: int, noise: float = 0.05, rng: Rng = None) -> TokenCloud:
        """``n`` tokens near five equispaced angles: the article's initial cloud on the circle."""
        return cls.clustered(n, sphere.circle_nodes(5), noise, rng)

    @classmethod
    def from_file(cls, path: str | PathLike[str], normalize: bool = False) -> TokenCloud:
        """Read a cloud from ``.npy`` (points), ``.npz`` (``points``, ``weights``) or ``.csv``.

        A ``.csv`` file has one token a row and one coordinate a column; a header line is
        allowed, and a column headed ``weight`` (or ``weights``) holds the weights.
        ``normalize`` divides points by their norms and weights by their sum, as `normalized`.

        Raises
        ------
        ValueError
            For another suffix, a missing ``points`` array, or invalid contents.
        """
        file = Path(path)
        make = cls.normalized if normalize else cls
        if file.suffix == ".npy":
            return make(np.load(file, allow_pickle=False))
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as archive:
                if "points" not in archive:
                    raise ValueError(f"{file} must hold an array 'points', got {archive.files}")
                weights = archive.get("weights")
                return make(archive["points"], weights)
        if file.suffix == ".csv":
            return make(*_read_csv(file))
        raise ValueError(f"path must end in .npy, .npz or .csv, got {str(file)!r}")


def _directions(vectors: Array, name: str) -> Array:
    """Rows divided by their norms, whatever their scale; a zero row is an error."""
    largest = np.abs(vectors).max(axis=1, initial=0.0)
    if (largest == 0).any():
        raise ValueError(f"{name}[{int(np.argmin(largest))}] is zero and has no direction")
    scaled = vectors / largest[:, None]
    unit: Array = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
    return unit


def require_cloud(value: object, name: str = "cloud") -> TokenCloud:
    """``value``, if it is a token cloud; a clear error otherwise."""
    if not isinstance(value, TokenCloud):
        raise TypeError(f"{name} must be a TokenCloud, got {type(value).__name__}")
    return value


def _read_csv(file: Path) -> tuple[Array, Array]:
    lines = [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    names = _header(lines[0]) if lines else []
    rows = lines[1:] if names else lines
    if not rows:
        raise ValueError(f"{file} must hold at least one token, got no rows of numbers")
    table = np.loadtxt(rows, delimiter=",", ndmin=2)
    columns = [k for k, name in enumerate(names) if name in ("weight", "weights")]
    if not columns:
        return table, np.full(table.shape[0], 1 / table.shape[0])
    return np.delete(table, columns, axis=1), table[:, columns[0]]


def _header(line: str) -> list[str]:
    """Column names in lower case, none if the line holds numbers."""
    cells = line.split(",")
    try:
        [float(cell) for cell in cells]
    except ValueError:
        return [cell.strip().lower() for cell in cells]
    return []
