r"""What a sharded step does on the workers; every function takes a shard and what is kept with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .. import sphere
from ..attention.heads import Heads
from ..attention.model import AttentionModel
from ..attention.shards import Part, Shard
from ..transport.cost import SourceCost
from .bounds import PotentialBounds
from .certificate import local_proof, token_values
from .coupling import TokenCoupling
from .pointwise import TokenProblems
from .positions import clipped, lengths
from .preconditioner import Preconditioner
from .problem import Anchor, Coupling, Evaluation, Objective, StepProblem

Array = NDArray[np.float64]

#: Pairs that every worker remembers.
PAIRS = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """One shard of the iterate, on its worker.

    Attributes
    ----------
    objective, at, preconditioner, pairs, direction
        As in `jko.steps.positions`.
    slopes, terms, solved : list of (n, d)
        The gradient and the ``y_j`` of the pairs, the last terms of the series of ``M^{-1}`` applied
        to them, and its sum so far.
    """

    objective: Objective
    at: Evaluation
    preconditioner: Preconditioner | None = None
    pairs: tuple[tuple[Array, Array], ...] = ()
    direction: Array | None = None
    slopes: list[Array] = field(default_factory=list)
    terms: list[Array] = field(default_factory=list)
    solved: list[Array] = field(default_factory=list)

    @property
    def coupling(self) -> TokenCoupling:
        """The coupling of a preconditioner that has one."""
        assert self.preconditioner is not None
        assert self.preconditioner.coupling is not None
        return self.preconditioner.coupling


def begin(
    shard: Shard, mobility: Part, part: Part, model: AttentionModel, step: float, energy_time: float
) -> State:
    """The state at the start, from the fields for mobility and energy."""
    if not (shard.weights > 0).all():
        raise ValueError("cloud must have positive weights for a sharded step")
    cost = SourceCost(shard.points, mobility.fields.effective_mobility)
    problem = StepProblem(
        model=model,
        weights=shard.weights,
        step=step,
        energy_time=energy_time,
        anchors=(Anchor(cost),),
        start=shard.points,
    )
    objective = Objective(problem, Coupling.labels(shard.weights))
    return State(objective=objective, at=objective.assemble(shard.points, part.fields))


def _dot(state: State, u: Array, v: Array) -> float:
    return float(state.objective.problem.weights @ np.einsum("nd,nd->n", u, v))


def scalars(shard: Shard, state: State) -> tuple[float, float, float, float, float]:
    """Transport, energy, squared gradient norm, slope along the direction, and rounding."""
    at = state.at
    slope = 0.0 if state.direction is None else _dot(state, at.gradient, state.direction)
    return at.transport, at.energy, at.norm**2, slope, state.objective.rounding(at)


def preconditioned(shard: Shard, state: State, coupled: bool) -> State:
    """With a preconditioner made here; if ``coupled``, to be `completed`."""
    return replace(state, preconditioner=Preconditioner(state.objective, state.at, coupled))


def gram(shard: Shard, state: State) -> Array:
    """What the shard adds to the small matrices of the coupling."""
    return state.coupling.gram


def completed(shard: Shard, state: State, gram: Array) -> State:
    """With the sum of all shards' `gram`."""
    assert state.preconditioner is not None
    return replace(state, preconditioner=state.preconditioner.completed(gram))


def solving(shard: Shard, state: State) -> State:
    """``g, y_j`` in the tangent spaces of the iterate, and the inverse of the blocks on them."""
    assert state.preconditioner is not None
    points = state.at.points
    slopes = [state.at.gradient, *(sphere.project(points, y) for _, y in state.pairs)]
    terms = [state.preconditioner.blocks(points, y) for y in slopes]
    return replace(state, slopes=slopes, terms=terms, solved=terms)


def collected(shard: Shard, state: State) -> Array:
    """What the shard adds to the coupling of the last terms."""
    return np.stack([state.coupling.collect(term) for term in state.terms])


def next_terms(shard: Shard, state: State, collected: Array) -> State:
    """Another term of the series, from the sum of what the shards `collected`."""
    assert state.preconditioner is not None
    points = state.at.points
    terms = [state.preconditioner.next_term(points, sums) for sums in collected]
    solved = [z + term for z, term in zip(state.solved, terms, strict=True)]
    return replace(state, terms=terms, solved=solved)


def _moves(state: State) -> list[Array]:
    return [sphere.project(state.at.points, s) for s, _ in state.pairs]


def inner_products(shard: Shard, state: State) -> Array:
    """Both tables of `_two_loop`, stacked."""
    moves, slopes, solved = _moves(state), state.slopes, state.solved
    inner = [[_dot(state, s, y) for y in slopes] for s in moves]
    outer = [[_dot(state, y, z) for z in solved] for y in slopes[1:]]
    return np.array([inner, outer]).reshape(2, len(moves), len(slopes))


def directed(shard: Shard, state: State, along: Array, across: Array) -> State:
    """With the direction of the coefficients that `two_loop` found."""
    vector = state.solved[0]
    for coefficient, z in zip(along, state.solved[1:], strict=True):
        vector = vector + coefficient * z
    for coefficient, s in zip(across, _moves(state), strict=True):
        vector = vector + coefficient * s
    return replace(state, direction=clipped(-vector))


def slope(shard: Shard, state: State) -> float:
    """What the shard adds to the slope along the direction."""
    assert state.direction is not None
    return _dot(state, state.at.gradient, state.direction)


def longest(shard: Shard, state: State) -> float:
    """Length of the longest move of a token."""
    assert state.direction is not None
    return float(lengths(state.direction).max())


def moved(shard: Shard, state: State, length: float) -> Shard:
    """The tokens moved along the direction."""
    assert state.direction is not None
    points = sphere.exp(state.at.points, length * state.direction)
    return Shard(points=points, weights=shard.weights)


def advanced(shard: Shard, state: State, part: Part, length: float) -> State:
    """The state at the moved points; the direction is kept for the slope there."""
    new = state.objective.assemble(part.fields.at, part.fields)
    assert state.direction is not None
    move = sphere.project(new.points, length * state.direction)
    change = new.gradient - sphere.project(new.points, state.at.gradient)
    pairs = (*state.pairs, (move, change))[-PAIRS:]
    return replace(state, at=new, pairs=pairs)


def bounds(shard: Shard, state: State, heads: Heads, sign: int, third: bool) -> Array:
    """What the shard adds to `PotentialBounds.of_measure`."""
    points, weights = state.at.points, state.objective.problem.weights
    b = PotentialBounds.of_measure(points, weights, heads, sign, third)
    return np.array([b.lower, b.lipschitz, b.concavity, b.hessian_lipschitz])


def proof(shard: Shard, state: State, bounds: PotentialBounds) -> Array:
    """Weighted gap and number of proven tokens of the shard."""
    problem = state.objective.problem
    problems = TokenProblems(problem, state.at.points, problem.anchors)
    value = token_values(problem, state.at, state.objective.coupling)
    gap, proven = local_proof(problems, state.at, value, bounds)
    return np.array([problem.weights @ gap, proven.sum()])
