r"""The choice of an evaluator of kernel sums.

The dense sums take time ``n m`` per head; the harmonic ones ``L^4`` per head at the nodes of the
grid, and ``(n + m) L^2`` at the tokens, with the degree L set by ``|D|`` and the tolerance.
Milliseconds on one thread of a pass of order 1 at the tokens themselves, uniform tokens:

=======  ===  ==  =====  =======  =======  ==========  ==========
                         dense             harmonic
-----------------------  ----------------  ----------------------
heads    |D|  L   n      d = 2    d = 3    d = 2       d = 3
=======  ===  ==  =====  =======  =======  ==========  ==========
ten      1    13  500    0.9      1.2      1.1         2.8
..       ..   ..  1000   3.9      6.5      1.2         3.6
..       3    20  1000   3.8      6.8      1.5         13
..       ..   ..  2000   14       22       1.8         14
..       5    25  2000   15       25       1.7         27
..       ..   ..  5000   87       154      2.5         34
one      3    20  1000   0.4      0.7      0.5         2.3
..       ..   ..  2000   1.7      3.2      0.7         2.7
..       ..   ..  10000  37       65       1.5         5.8
=======  ===  ==  =====  =======  =======  ==========  ==========

With ten heads the harmonic sums win from about 600 tokens on in d = 2, and from 800 (|D| = 1),
1500 (|D| = 3) and 2100 (|D| = 5) in d = 3.  Where the compiled sums were not built, both take
twice as long and more (see `compiled`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._validation import choice
from .compiled import is_compiled
from .harmonic import HarmonicKernel, degree_groups
from .kernel import DenseKernel, Kernel, KernelSums, payload_columns

__all__ = ["AutoKernel", "make_kernel"]

Array = NDArray[np.float64]

logger = logging.getLogger(__name__)

#: Products of numbers of targets and sources below which the dense sums always win.
DENSE_PAIRS = {2: 90_000, 3: 490_000}


@dataclass(frozen=True, kw_only=True)
class _Costs:
    """Measured costs in seconds on one thread.

    Of a pair of tokens in rows, where symmetry saves half, and of a pair of nodes; of the features
    of a token, per degree, by dimension; of a multiplication of the series.
    """

    rows: float
    symmetric: float
    nodes: float
    feature: dict[int, float]
    multiplication: float


COMPILED = _Costs(
    rows=0.7e-9,
    symmetric=0.5e-9,
    nodes=1.05e-9,
    feature={2: 2.5e-9, 3: 4e-9},
    multiplication=0.025e-9,
)
NUMPY = _Costs(
    rows=1.25e-9,
    symmetric=0.8e-9,
    nodes=1.5e-9,
    feature={2: 6e-9, 3: 11e-9},
    multiplication=0.04e-9,
)

#: The same, with either, of an entry that is summed, of a call and of a head.
ENTRY, CALL, HEAD = 0.25e-9, 0.35e-3, {2: 0.06e-3, 3: 0.15e-3}

#: The harmonic sums must promise to take less than this share of the time of the dense ones.
ADVANTAGE = 0.9


@dataclass(frozen=True)
class AutoKernel:
    """Harmonic sums where they are faster than dense ones, group of heads by group of heads.

    The choice depends on the numbers of targets, tokens and heads, on their dimension, on the
    norms of the heads and on whether the compiled sums were built: never on a clock, so that
    results are reproducible.

    Parameters
    ----------
    tolerance, threads
        See `HarmonicKernel`.
    """

    tolerance: float = 1e-12
    threads: int | None = None

    def sums(
        self, at: Array, points: Array, weights: Array, matrices: Array, order: int
    ) -> KernelSums:
        """Sums up to ``order`` at ``at`` (m, d), over ``points`` (n, d) of ``weights`` (n,)."""
        degrees = self.degrees(at, points, weights, matrices, order)
        logger.debug("degrees %s (0: dense) for %d x %d pairs", degrees, len(at), len(points))
        if not degrees.any():
            return DenseKernel(self.threads).sums(at, points, weights, matrices, order)
        kernel = HarmonicKernel(self.tolerance, self.threads)
        return kernel.evaluate(at, points, weights, matrices, order, degrees).sums

    def degrees(
        self, at: Array, points: Array, weights: Array, matrices: Array, order: int
    ) -> NDArray[np.intp]:
        """Degree of every head, 0 for those that are better evaluated densely."""
        heads, dim = matrices.shape[:2]
        none = np.zeros(heads, dtype=np.intp)
        if dim not in DENSE_PAIRS or len(at) * len(points) < DENSE_PAIRS[dim]:
            return none
        degrees = HarmonicKernel(self.tolerance).degrees(points, weights, matrices, order)
        costs = _costs(dim)
        dense = len(at) * len(points) * (costs.symmetric if at is points else costs.rows)
        for group in degree_groups(degrees):
            cost = harmonic_seconds(
                len(at), len(points), group.size, dim, order, int(degrees[group].max())
            )
            if cost > ADVANTAGE * dense * group.size:
                degrees[group] = 0
        return degrees


def _costs(dim: int) -> _Costs:
    return COMPILED if is_compiled(dim, 1) else NUMPY


def harmonic_seconds(
    targets: int, sources: int, heads: int, dim: int, order: int, degree: int
) -> float:
    """Time of a harmonic evaluation on one thread, by the measured costs."""
    columns = payload_columns(dim, order)
    size = degree + 1
    nodes = 2 * size if dim == 2 else 2 * size**2
    entries = 1 if dim == 2 else 2 * size
    costs = _costs(dim)
    features = costs.feature[dim] * (degree + order) * (targets + sources)
    series = columns * (costs.multiplication * nodes + ENTRY * (entries + 4)) * targets
    return CALL + features + heads * (HEAD[dim] + costs.nodes * nodes**2 + series)


def make_kernel(evaluator: str) -> Kernel:
    """The evaluator named ``"auto"``, ``"dense"`` or ``"harmonic"``.

    Raises
    ------
    ValueError
        For another name.  The harmonic evaluator raises it when it meets tokens of a
        dimension other than 2 and 3.
    """
    kernels: dict[str, Kernel] = {
        "auto": AutoKernel(),
        "dense": DenseKernel(),
        "harmonic": HarmonicKernel(),
    }
    return kernels[choice(evaluator, "evaluator", tuple(kernels))]
