r"""The choice of an evaluator of kernel sums.

The dense sums take time ``n m`` per head; the harmonic ones ``L^4`` per head at the nodes of the
grid, and ``(n + m) L^2`` at the tokens, with the degree L set by ``|D|`` and the tolerance.
Milliseconds on one thread of a pass of order 1 at the tokens themselves, uniform tokens:

=======  ===  ==  =====  ========  =======  ========
heads    |D|  L   n      dense     d = 2    d = 3
=======  ===  ==  =====  ========  =======  ========
ten      1    13  500    2.6       1.1      5.6
..       ..   ..  1000   8.9       1.3      7.3
..       3    20  1000   8.9       1.6      17
..       ..   ..  2000   32        2.2      19
..       5    25  2000   32        2.3      39
..       ..   ..  5000   190       4.2      50
..       3    20  100k   75 000    50       240
one      3    20  1000   0.9       0.7      2.6
..       ..   ..  2000   3.3       1.0      3.4
..       ..   ..  100k   7 500     29       68
=======  ===  ==  =====  ========  =======  ========

With ten heads the harmonic sums win from about 300 tokens on in d = 2, and from 900 (|D| = 1),
1400 (|D| = 3) and 2300 (|D| = 5) in d = 3.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._validation import choice
from .harmonic import HarmonicKernel, degree_groups
from .kernel import DenseKernel, Kernel, KernelSums
from .tiles import SYMMETRIC_COUNT

__all__ = ["AutoKernel", "make_kernel"]

Array = NDArray[np.float64]

logger = logging.getLogger(__name__)

#: Products of numbers of targets and sources below which the dense sums always win.
DENSE_PAIRS = {2: 90_000, 3: 490_000}

#: Measured costs in seconds on one thread: of a pair of tokens in row tiles, in symmetric tiles,
#: and of a pair of nodes; of the features of a token, per degree; of a multiplication of the
#: series and of an entry that is multiplied and summed; of a call and of a head.
ROW_PAIR, SYMMETRIC_PAIR, NODE_PAIR = 1.25e-9, 0.8e-9, 1.5e-9
FEATURE = {2: 6e-9, 3: 11e-9}
MULTIPLICATION, ENTRY = 0.04e-9, 0.25e-9
CALL, HEAD = 0.35e-3, {2: 0.06e-3, 3: 0.15e-3}

#: The harmonic sums must promise to take less than this share of the time of the dense ones.
ADVANTAGE = 0.9


@dataclass(frozen=True)
class AutoKernel:
    """Harmonic sums where they are faster than dense ones, group of heads by group of heads.

    The choice depends on the numbers of targets, tokens and heads, on their dimension and on
    the norms of the heads: never on a clock, so that results are reproducible.

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
        symmetric = at is points and len(points) >= SYMMETRIC_COUNT
        dense = len(at) * len(points) * (SYMMETRIC_PAIR if symmetric else ROW_PAIR)
        for group in degree_groups(degrees):
            cost = harmonic_seconds(
                len(at), len(points), group.size, dim, order, int(degrees[group].max())
            )
            if cost > ADVANTAGE * dense * group.size:
                degrees[group] = 0
        return degrees


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
    return CALL + features + heads * (HEAD[dim] + NODE_PAIR * nodes**2 + series)


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
