r"""One proximal problem on labelled tokens: what a scheme asks and a step solver answers.

.. math::

    \min_{y \in (S^{d-1})^n} \Phi(y), \qquad
    \Phi(y) = \sum_m \frac{\gamma_m}{2\tau} \sum_{ij} \pi^m_{ij}\, c_m(u^m_i, y_j) + E(y, t_e).

The JKO step has one anchor with coefficient one and its plan is optimised too; the
multi-step schemes have several anchors coupled by label.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from .. import sphere
from ..attention.fields import Fields, finite
from ..attention.heads import Heads
from ..attention.model import AttentionModel
from ..transport.cost import GEODESIC_NODES, CostTerms, GroundCost, SourceCost
from .memory import pass_order, require_memory

__all__ = ["Anchor", "Coupling", "Evaluation", "Objective", "StepProblem"]

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Coupling:
    """A sparse coupling between ``n`` sources and ``n`` targets of the same weights.

    Attributes
    ----------
    rows, columns : (K,)
        Source and target of every entry.
    mass : (K,)
        ``pi_ij``.
    share : (K,)
        ``pi_ij / a_j``, the share of the target's mass.
    identity : bool
        Whether entry k couples source k with target k.
    """

    rows: IntArray
    columns: IntArray
    mass: Array
    share: Array
    identity: bool

    @classmethod
    def labels(cls, weights: Array) -> Coupling:
        """The identity coupling."""
        index = np.arange(weights.size)
        return cls(index, index, weights, np.ones(weights.size), True)

    @classmethod
    def from_plan(cls, plan: coo_array, weights: Array) -> Coupling:
        """The coupling of a sparse plan; the identity is recognised."""
        rows, columns = (np.asarray(k, dtype=np.intp) for k in plan.coords)
        diagonal = rows == columns
        if plan.nnz == weights.size and diagonal.all():
            return cls.labels(weights)
        mass = np.asarray(plan.data, dtype=float)
        total = np.bincount(columns, mass, weights.size)
        return cls(rows, columns, mass, mass / total[columns], False)

    def plan_on(self, index: IntArray, size: int) -> coo_array:
        """As a sparse matrix (size, size), entries at the given token indices."""
        return coo_array(
            (self.mass, (index[self.rows], index[self.columns])), shape=(size, size)
        )

    @property
    def permutation(self) -> IntArray | None:
        """Target of every source if no mass is split, else None."""
        if self.rows.size != np.unique(self.rows).size:
            return None
        target = np.empty(self.rows.size, dtype=np.intp)
        target[self.rows] = self.columns
        return target

    @property
    def sources(self) -> IntArray | slice:
        """Index of the source of every entry."""
        return slice(None) if self.identity else self.rows

    def at_targets(self, values: Array) -> Array:
        """``values_j`` for the target ``j`` of every entry; values (n, ...)."""
        return values if self.identity else values[self.columns]

    def per_target(self, values: Array) -> Array:
        """``sum_i (pi_ij / a_j) values_ij`` for every target ``j``; values (K, ...)."""
        if self.identity:
            return values
        shape = (int(self.columns.max()) + 1, *values.shape[1:])
        total = np.zeros(shape)
        scaled = self.share.reshape(-1, *(1,) * (values.ndim - 1)) * values
        np.add.at(total, self.columns, scaled)
        return total


@dataclass(frozen=True, eq=False)
class Anchor:
    """One transport term: its ground cost and its coefficient ``gamma_m``."""

    cost: GroundCost
    coefficient: float = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class StepProblem:
    """A proximal problem for tokens of positive weight.

    Attributes
    ----------
    model : AttentionModel
    weights : (n,)
        Token weights, all positive.
    step : float
        The proximal step ``tau``.
    energy_time : float
        Time ``t_e`` at which the energy is taken.
    anchors : tuple of Anchor
    start : (n, d)
        First iterate, at which the relative gradient norm is one.
    labelled : bool
        Keep the identity coupling even where the plan could be optimised.
    known : Fields, optional
        Energy fields at ``start``, where setting up the problem had them made.

    Raises
    ------
    StepTooLargeError
        If solving it would not fit in memory.
    """

    model: AttentionModel
    weights: Array
    step: float
    energy_time: float
    anchors: tuple[Anchor, ...]
    start: Array
    labelled: bool = False
    known: Fields | None = None

    def __post_init__(self) -> None:
        averaged = any(not isinstance(anchor.cost, SourceCost) for anchor in self.anchors)
        n, dim = self.start.shape
        require_memory(n, dim, self._heads.count, GEODESIC_NODES if averaged else 0)

    @property
    def heads(self) -> Heads:
        """Heads of the energy."""
        return self.model.path(self.energy_time)

    @cached_property
    def _heads(self) -> Heads:
        return self.heads

    @property
    def optimises_plan(self) -> bool:
        """Whether the plan is free (one anchor, coefficient one) or fixed to the labels."""
        free = len(self.anchors) == 1 and self.anchors[0].coefficient == 1.0
        return free and not self.labelled

    @cached_property
    def stiffness(self) -> Array:
        """``sum_m gamma_m beta_m,i / tau``: curvature of the transport term at distance zero."""
        return sum(
            (anchor.coefficient * anchor.cost.mobility for anchor in self.anchors),
            np.zeros(self.weights.size),
        ) / self.step

    def fields(self, at: Array, sources: Array, order: int) -> Fields:
        """Energy fields at ``at`` of the measure carried by ``sources``."""
        heads = self._heads
        sums = self.model.kernel.sums(at, sources, self.weights, heads.matrices, order)
        return Fields(at=at, heads=heads, sign=self.model.sign, sums=sums)

    def with_start(self, start: Array) -> StepProblem:
        """The same problem from another first iterate."""
        return replace(self, start=start, known=None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Value and gradient of the objective at one configuration.

    Attributes
    ----------
    points : (n, d)
    value, transport, energy : float
        ``Phi``, its transport part (divided by 2 tau) and the energy.
    gradient : (n, d)
        Gradient per unit mass, ``g_j / a_j``.
    norm : float
        ``sqrt(sum_j a_j |g_j / a_j|^2)``.
    fields : Fields
        The kernel pass behind it.
    terms : tuple of CostTerms
        Costs of the coupled pairs, one for every anchor.
    """

    points: Array
    value: float
    transport: float
    energy: float
    gradient: Array
    norm: float
    fields: Fields
    terms: tuple[CostTerms, ...]


class Objective:
    """The objective for a fixed coupling; counts the kernel passes made through it."""

    def __init__(self, problem: StepProblem, coupling: Coupling) -> None:
        self.problem = problem
        self.coupling = coupling
        self.evaluations = 0
        self.order = pass_order(problem.start.shape[1])

    def __call__(self, y: Array, order: int | None = None) -> Evaluation:
        """Evaluate at ``y``: one kernel pass."""
        self.evaluations += 1
        return self.assemble(y, self.problem.fields(y, y, self.order if order is None else order))

    def begin(self) -> Evaluation:
        """Evaluate at the start of the problem: one kernel pass, made here or before."""
        if self.problem.known is None:
            return self(self.problem.start)
        self.evaluations += 1
        return self.assemble(self.problem.start, self.problem.known)

    def assemble(self, y: Array, fields: Fields) -> Evaluation:
        """Evaluate at ``y`` given the energy fields there: no kernel pass."""
        problem, coupling = self.problem, self.coupling
        energy = fields.energy(problem.weights)
        gradient = fields.gradient
        transport, terms = 0.0, list[CostTerms]()
        for anchor in problem.anchors:
            factor = anchor.coefficient / (2 * problem.step)
            pairs = self._terms(anchor.cost, y)
            transport += factor * float(coupling.mass @ pairs.value)
            gradient = gradient + factor * coupling.per_target(pairs.gradient)
            terms.append(pairs)
        with np.errstate(over="ignore", invalid="ignore"):
            squared = float(problem.weights @ np.vecdot(gradient, gradient))
        norm = sqrt(finite(squared, "squared gradient of the step", fields.heads))
        return Evaluation(
            points=y,
            value=transport + energy,
            transport=transport,
            energy=energy,
            gradient=gradient,
            norm=norm,
            fields=fields,
            terms=tuple(terms),
        )

    def _terms(self, cost: GroundCost, y: Array) -> CostTerms:
        coupling = self.coupling
        if coupling.identity and y is cost.points:
            return CostTerms.at_rest(y)
        return cost.terms(coupling.sources, coupling.at_targets(y))

    def blocks(
        self, at: Evaluation, tokens: slice = slice(None), normal: Array | float = 0.0
    ) -> Array:
        """Diagonal blocks of the Hessian per unit mass, as ambient matrices (n, d, d).

        At an evaluation of order 2; ``normal`` is the eigenvalue in the normal direction.  Parts
        of the tokens at a time cost the same in all where the coupling is the identity.
        """
        problem, coupling = self.problem, self.coupling
        form, scale = at.fields.ambient_hessian(tokens)
        rows, entries, part = coupling.sources, slice(None), tokens
        if coupling.identity:
            # entries are tokens, and only these are needed
            rows, entries, part = tokens, tokens, slice(None)
        for anchor, terms in zip(problem.anchors, at.terms, strict=True):
            factor = anchor.coefficient / (2 * problem.step)
            back = terms.back[entries]
            along, across = anchor.cost.curvature(rows, back)
            square = (factor * along)[:, None, None] * (back[:, :, None] * back[:, None, :])
            form = form + coupling.per_target(square)[part]
            scale = scale + factor * coupling.per_target(across)[part]
        hessian = sphere.restrict(at.points[tokens], form, scale, normal)
        return finite(hessian, "Hessian of the step", at.fields.heads)

    def rounding(self, at: Evaluation) -> float:
        """Size of the gradient's own rounding error: a floor for any convergence test."""
        heads = self.problem._heads
        pull = np.abs(self.problem.stiffness).max()
        push = float((heads.weights * heads.norms) @ at.fields.largest_mobility)
        return float(4 * np.finfo(float).eps * (pull + push))
