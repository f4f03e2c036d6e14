r"""The preconditioner of a step's positions: Hessian blocks of the tokens, and their coupling."""

from __future__ import annotations

from copy import copy

import numpy as np
from numpy.typing import NDArray

from .. import sphere
from ..attention.kernel import TOKEN_BLOCK
from ..attention.threads import run_tasks
from .coupling import TokenCoupling
from .problem import Evaluation, Objective

__all__ = ["Preconditioner", "series_terms"]

Array = NDArray[np.float64]

#: Eigenvalues of the blocks are at least this share of the transport stiffness.
FLOOR = 1e-2

#: Terms of Neumann's series for the coupling; an even number keeps it positive.
NEUMANN_TERMS = 2

#: Where the gradient has to shrink to this share or less, the coupling is worth its products.
MILD = 0.5

#: Cost of a token's block in exponentials, for the decision to use threads.
BLOCK_WORK = 500.0


def series_terms(norm: float, goal: float) -> int:
    """Terms of the series for an iteration that starts from this gradient norm."""
    return NEUMANN_TERMS if goal < MILD * norm else 0


class Preconditioner:
    r"""An approximate inverse of the step's Hessian, positive definite on the tangent space.

    B holds the diagonal blocks of the tokens: eigenvalues are replaced by their absolute value, at
    least a hundredth of the transport stiffness of the token.  In high dimension, without second
    moments, a block is the transport stiffness alone: a number, no matrix.  The part C of the
    Hessian that couples tokens enters by two terms of Neumann's series,

    .. math:: B^{-1} - B^{-1} C B^{-1} + B^{-1} C B^{-1} C B^{-1},

    which is positive definite however strong C is.

    Parameters
    ----------
    objective : Objective
    at : Evaluation
    coupled : bool
        Whether to include C, where its images are known; `completed` then ends the work.

    Attributes
    ----------
    coupling : TokenCoupling or None
    """

    def __init__(self, objective: Objective, at: Evaluation, coupled: bool = False) -> None:
        points, sums = at.points, at.fields.sums
        stiffness = np.abs(objective.problem.stiffness)
        self.coupling: TokenCoupling | None = None
        if sums.order < 2:
            self._inverse = 1 / stiffness[:, None, None]
            return
        if coupled and sums.shift is None:
            self.coupling = TokenCoupling(at.fields, objective.problem.weights)
        self._inverse = np.empty((*points.shape, points.shape[1]))
        count = points.shape[0]
        size = TOKEN_BLOCK if objective.coupling.identity else count

        def task(start: int) -> None:
            part = slice(start, start + size)
            # the normal direction gets the stiffness, and is projected away afterwards
            blocks = objective.blocks(at, part, stiffness[part])
            self._inverse[part] = _positive_inverse(blocks, FLOOR * stiffness[part])

        run_tasks(task, range(0, count, size), BLOCK_WORK * count)

    def completed(self, gram: Array | None = None) -> Preconditioner:
        """The same with the sum of all tokens' `TokenCoupling.gram`: its own by default."""
        if self.coupling is None:
            return self
        whole = copy(self)
        whole.coupling = self.coupling.completed(self.coupling.gram if gram is None else gram)
        return whole

    def __call__(self, points: Array, v: Array, terms: int = NEUMANN_TERMS) -> Array:
        """Apply it to tangent vectors (n, d) at ``points``, near where it was made."""
        total = term = self.blocks(points, v)
        if self.coupling is not None:
            for _ in range(terms):
                term = self.next_term(points, self.coupling.collect(term))
                total = total + term
        return total

    def blocks(self, points: Array, v: Array) -> Array:
        """Apply the inverse of B."""
        if self._inverse.shape[1:] == (1, 1):
            return sphere.project(points, self._inverse[:, 0] * v)
        return sphere.project(points, np.einsum("nij,nj->ni", self._inverse, v))

    def next_term(self, points: Array, collected: Array) -> Array:
        """The term of the series after the one that all tokens `TokenCoupling.collect`-ed."""
        assert self.coupling is not None
        return -self.blocks(points, self.coupling.spread(collected))


def _positive_inverse(blocks: Array, floor: Array) -> Array:
    """Inverses of symmetric matrices (n, d, d) with the eigenvalues ``max(|lambda|, floor)``.

    Most matrices are positive definite and far above the floor.  Their plain inverse, by the
    sweep operator on all of them at once, is several times cheaper than eigenvectors (seven in
    dimension 3); its trace shows where it is the answer.
    """
    # what the sweep leaves of an indefinite matrix is discarded, however large
    with np.errstate(over="ignore", invalid="ignore"):
        inverse, safe = _swept(blocks)
        safe &= np.einsum("nii->n", inverse) * floor <= 1
    rest = np.flatnonzero(~safe)
    if rest.size:
        values, vectors = np.linalg.eigh(blocks[rest])
        values = np.maximum(np.abs(values), floor[rest, None])
        inverse[rest] = np.einsum("nij,nj,nkj->nik", vectors, 1 / values, vectors)
    return inverse


def _swept(blocks: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Inverses by the symmetric sweep, and which matrices it found positive definite."""
    # a copy: of a single matrix the view with its axes moved is contiguous already
    work = np.array(np.moveaxis(blocks, 0, 2), order="C")
    positive = np.ones(blocks.shape[0], dtype=bool)
    for k in range(work.shape[0]):
        positive &= work[k, k] > 0
        pivot = np.where(positive, work[k, k], 1)
        row = work[k] / pivot
        work -= work[:, k, None] * row
        work[k] = work[:, k] = row
        work[k, k] = -1 / pivot
    return np.ascontiguousarray(-np.moveaxis(work, 2, 0)), positive
