r"""The choice of an evaluator of kernel sums.

The dense sums take time ``n m`` per head; the harmonic ones ``L^4`` per head at the nodes of the
grid, and ``(n + m) L^2`` at the tokens, with the degree L set by ``|D|`` and the tolerance.
Milliseconds on one thread of a pass of order 1 at the tokens themselves, uniform tokens:

=======  ===  ==  =====  =======  =======  ==========  ==========
                         dense             harmonic
-----------------------  ----------------  ----------------------
heads    |D|  L   n      d = 2    d = 3    d = 2       d = 3
=======  ===  ==  =====  =======  =======  ==========  ==========
ten      1    13  500    0.9      1.7      1.4         5.0
..       ..   ..  1000   4.1      6.2      1.5         6.0
..       3    20  1000   3.9      6.2      1.8         11
..       ..   ..  2000   14       26       2.3         18
..       5    25  2000   14       22       2.4         25
..       ..   ..  5000   90       150      4.0         47
one      3    20  1000   0.4      0.6      1.0         3.3
..       ..   ..  2000   2.0      3.1      1.5         4.4
..       ..   ..  10000  40       56       3.5         12
=======  ===  ==  =====  =======  =======  ==========  ==========

With ten heads the harmonic sums win from about 600 tokens on in d = 2, and from 1000 (|D| = 1),
1500 (|D| = 3) and 2200 (|D| = 5) in d = 3.  Where the compiled sums were not built, dense sums
take twice as long and more (see `compiled`), and the harmonic ones win earlier.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._validation import choice
from .compiled import is_compiled
from .harmonic import HarmonicKernel, degree_groups
from .kernel import DenseKernel, Kernel, KernelSums

__all__ = ["AutoKernel", "make_kernel"]

Array = NDArray[np.float64]

logger = logging.getLogger(__name__)

#: Products of numbers of targets and sources below which the dense sums always win.
DENSE_PAIRS = {2: 90_000, 3: 490_000}

#: Measured costs in seconds on one thread, with compiled sums and without: of a pair of tokens
#: in rows and where symmetry saves half, and of a pair of nodes; of the features of a token, per
#: degree; of a multiplication of the series and of an entry that is multiplied and summed; of a
#: call and of a head.
COMPILED_PAIR = {"rows": 0.7e-9, "symmetric": 0.5e-9, "nodes": 0.9e-9}
NUMPY_PAIR = {"rows": 1.25e-9, "symmetric": 0.8e-9, "nodes": 1.5e-9}
FEATURE = {2: 6e-9, 3: 11e-9}
MULTIPLICATION, ENTRY = 0.04e-9, 0.25e-9
CALL, HEAD = 0.35e-3, {2: 0.06e-3, 3: 0.15e-3}

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
        pair = pair_seconds(dim, order)
        dense = len(at) * len(points) * pair["symmetric" if at is points else "rows"]
        for group in degree_groups(degrees):
            cost = harmonic_seconds(
                len(at), len(points), group.size, dim, order, int(degrees[group].max())
            )
            if cost > ADVANTAGE * dense * group.size:
                degrees[group] = 0
        return degrees


def pair_seconds(dim: int, order: int) -> dict[str, float]:
    """Time of an exponential and its sums on one thread, by the measured costs."""
    columns = (1, 1 + dim, 1 + dim + dim * (dim + 1) // 2)[order]
    return COMPILED_PAIR if is_compiled(dim, columns) else NUMPY_PAIR


def harmonic_seconds(
    targets: int, sources: int, heads: int, dim: int, order: int, degree: int
) -> float:
    """Time of a harmonic evaluation on one thread, by the measured costs."""
    columns = (1, 1 + dim, 1 + dim + dim * (dim + 1) // 2)[order]
    size = degree + 1
    nodes = 2 * size if dim == 2 else 2 * size**2
    entries = 1 if dim == 2 else 2 * size
    features = FEATURE[dim] * (degree + order) * (targets + sources)
    series = columns * (MULTIPLICATION * nodes + ENTRY * (entries + 4)) * targets
    node_sums = pair_seconds(dim, order)["nodes"] * nodes**2
    return CALL + features + heads * (HEAD[dim] + node_sums + series)


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
