r"""The JKO step on tokens that live on the workers of a dask cluster.

The method is that of one process (`jko.steps.positions`): L-BFGS with the same preconditioner.
Its vectors stay on the workers.  What L-BFGS needs of them are inner products,

.. math:: \langle s_i, g\rangle, \quad \langle s_i, y_j\rangle, \quad
          \langle y_i, M^{-1} g\rangle, \quad \langle y_i, M^{-1} y_j\rangle,

which add up over the shards like energies, moments and the two halves of a product with the
coupling do; the client turns them into the coefficients of the direction.  Labels are kept: the
plan is the identity, which the O(n) certificate proves where it proves every token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._validation import finite_number, positive_integer, positive_number
from ..attention.model import AttentionModel
from ..attention.sharded import sharded_fields, sharded_fields_at
from ..attention.shards import ShardedCloud, ShardedFields
from . import shard_work as work
from .bounds import PotentialBounds
from .branch import Curvature
from .cells import Cells
from .certificate import SURVEY_TOKENS
from .coupling import worth_coupling
from .memory import pass_order
from .positions import FAST, SHORT_MOVE, SUFFICIENT_DECREASE
from .preconditioner import series_terms
from .result import Certificate, StepError, StepStats, StepStatus
from .survey import SURVEY_LEVEL, Survey

__all__ = ["ShardedStep", "sharded_step"]

Array = NDArray[np.float64]

LINE_SEARCH = 30


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardedStep:
    """A step whose tokens stayed on the workers; see `StepResult` for the fields."""

    cloud: ShardedCloud
    objective: float
    distance_squared: float
    energy_before: float
    energy: float
    certificate: Certificate
    status: StepStatus
    stats: StepStats


@dataclass(frozen=True, kw_only=True)
class _Totals:
    """Sums over all shards at one iterate; ``slope`` is along the direction that led there."""

    transport: float
    energy: float
    norm: float
    slope: float
    rounding: float

    @property
    def value(self) -> float:
        return self.transport + self.energy


def sharded_step(
    model: AttentionModel,
    cloud: ShardedCloud,
    t: float,
    step: float,
    energy_time: float | None = None,
    *,
    tolerance: float = 1e-10,
    max_evaluations: int = 200,
) -> ShardedStep:
    r"""`proximal_step` with ``cost="source"`` for tokens on the workers, which stay there.

    Parameters
    ----------
    model, t, step, energy_time
        As in `proximal_step`.
    cloud : ShardedCloud
        Tokens of positive weight.
    tolerance : float
        Gradient norm to reach, relative to its value at the start.
    max_evaluations : int
        Kernel passes that may be spent.

    The certificate is the O(n) proof: ``"proven"``, or ``"unchecked"`` where it does not cover every
    token; nothing is then known of the plan, whose gap is infinite.

    Raises
    ------
    ValueError, TypeError
        For invalid arguments, tokens of weight zero included.
    StepError
        If the result would break ``Phi <= E(mu, t_e)``.
    """
    t, step = finite_number(t, "t"), positive_number(step, "step")
    energy_time = t + step if energy_time is None else finite_number(energy_time, "energy_time")
    positive_number(tolerance, "tolerance")
    positive_integer(max_evaluations, "max_evaluations")
    solver = _Solver(model, cloud, t, step, energy_time)
    status = solver.minimise(tolerance, max_evaluations)
    first, at = solver.first, solver.at
    if at.value > first.energy + 1e-13 * max(1.0, abs(first.energy)):
        raise StepError(
            f"the step would end with objective {at.value:.17g} above the energy "
            f"{first.energy:.17g} of the measure it starts from"
        )
    return ShardedStep(
        cloud=solver.cloud,
        objective=at.value,
        distance_squared=2 * step * at.transport,
        energy_before=first.energy,
        energy=at.energy,
        certificate=solver.certificate(),
        status=status,
        stats=StepStats(
            iterations=solver.iterations,
            gradient_evaluations=solver.evaluations,
            certificate_evaluations=solver.certificate_evaluations,
        ),
    )


class _Solver:
    """The client's side: futures of the shards' states, and their sums."""

    def __init__(
        self, model: AttentionModel, cloud: ShardedCloud, t: float, step: float, energy_time: float
    ) -> None:
        self.model, self.start, self.cloud = model, cloud, cloud
        self.step, self.energy_time = step, energy_time
        self.order = pass_order(cloud.dim)
        self.iterations = self.evaluations = self.certificate_evaluations = 0
        mobility = sharded_fields(model, cloud, t, 0)
        fields = self._fields(cloud, self.order)
        self.states = cloud.map(
            work.begin, model, step, energy_time, each=[mobility.parts, fields.parts]
        )
        self.first = self.at = self._totals(cloud, self.states)

    def _fields(self, cloud: ShardedCloud, order: int) -> ShardedFields:
        self.evaluations += 1
        return sharded_fields(self.model, cloud, self.energy_time, order)

    def _sum(
        self, function: Callable[..., Any], *common: Any, states: tuple[Any, ...] | None = None
    ) -> Any:
        """Sum over the shards of ``function(shard, state, *common)``, in their order."""
        each = [self.states if states is None else states]
        values = self.cloud.client.gather(list(self.cloud.map(function, *common, each=each)))
        return sum(values[1:], start=values[0])

    def _totals(self, cloud: ShardedCloud, states: tuple[Any, ...]) -> _Totals:
        values = np.array(cloud.client.gather(list(cloud.map(work.scalars, each=[states]))))
        transport, energy, squared, slope = values[:, :4].sum(axis=0).tolist()
        return _Totals(
            transport=transport,
            energy=energy,
            norm=sqrt(squared),
            slope=slope,
            rounding=float(values[:, 4].max()),
        )

    def minimise(self, tolerance: float, max_evaluations: int) -> StepStatus:
        """L-BFGS as in `jko.steps.positions`."""
        goal = max(tolerance * self.at.norm, self.at.rounding)
        heads = self.model.heads(self.energy_time)
        self.coupled = self.order == 2 and worth_coupling(self.cloud.n, heads)
        fast, fresh = False, True
        while self.at.norm > goal:
            if self.evaluations >= max_evaluations:
                return StepStatus.MAX_EVALUATIONS
            self.iterations += 1
            if fresh:
                self._precondition()
            slope = self._direct(series_terms(self.at.norm, goal) if self.coupling else 0)
            if self.iterations == 1:
                fast = self._longest_move() <= SHORT_MOVE
            found = self._line_search(slope, 1 if fast else self.order)
            if found is None:
                return StepStatus.STALLED
            norm = self.at.norm
            self.cloud, self.states, self.at, length = found
            self.coupled &= length == 1
            fresh = not fast
            fast = self.at.norm <= FAST * norm
        if self.at.norm > tolerance * self.first.norm:
            return StepStatus.ROUNDING
        return StepStatus.CONVERGED

    def _precondition(self) -> None:
        """Give every state its preconditioner, and that the sums of all tokens."""
        self.states = self.cloud.map(work.preconditioned, self.coupled, each=[self.states])
        self.coupling = self.coupled
        if self.coupled:
            gram = self._sum(work.gram)
            self.states = self.cloud.map(work.completed, gram, each=[self.states])

    def _direct(self, terms: int) -> float:
        """Give every state its direction; the slope along it."""
        self.states = self.cloud.map(work.solving, each=[self.states])
        for _ in range(terms):
            collected = self._sum(work.collected)
            self.states = self.cloud.map(work.next_terms, collected, each=[self.states])
        inner, outer = self._sum(work.inner_products)
        along, across = _two_loop(inner, outer)
        self.states = self.cloud.map(work.directed, along, across, each=[self.states])
        slope = float(self._sum(work.slope))
        if slope >= 0:
            zero = np.zeros_like(along)
            self.states = self.cloud.map(work.directed, zero, zero, each=[self.states])
            slope = float(self._sum(work.slope))
        return slope

    def _longest_move(self) -> float:
        lengths = self.cloud.map(work.longest, each=[self.states])
        return float(max(self.cloud.client.gather(list(lengths))))

    def _line_search(
        self, slope: float, order: int
    ) -> tuple[ShardedCloud, tuple[Any, ...], _Totals, float] | None:
        """The acceptance rules of `jko.steps.positions`."""
        at = self.at
        growth = max(1.0, sqrt(self.cloud.n) / 256)
        noise = 4 * np.finfo(float).eps * growth * (abs(at.transport) + abs(at.energy))
        length = 1.0
        for _ in range(LINE_SEARCH):
            shards = self.cloud.map(work.moved, length, each=[self.states])
            cloud = replace(self.cloud, shards=shards)
            fields = self._fields(cloud, order)
            states = cloud.map(work.advanced, length, each=[self.states, fields.parts])
            new = self._totals(cloud, states)
            if new.value <= at.value + SUFFICIENT_DECREASE * length * slope:
                return cloud, states, new, length
            if new.value <= at.value + noise and new.slope <= -0.8 * slope and new.norm < at.norm:
                return cloud, states, new, length
            drop = new.value - at.value - length * slope
            guess = -slope * length**2 / (2 * drop) if drop > 0 else length / 2
            length = float(np.clip(guess, 0.1 * length, 0.5 * length))
        return None

    def certificate(self) -> Certificate:
        """The O(n) proof, with surveyed constants where the global ones leave many tokens open."""
        gap, proven = self._sum(work.proof, self._global_bounds(third=False))
        if self.cloud.dim <= 3 and self.cloud.n - proven > SURVEY_TOKENS:
            gap, proven = self._sum(work.proof, self._surveyed_bounds())
        heads = self.model.heads(self.energy_time)
        complete = proven == self.cloud.n
        used = 2 * self.step * self.at.transport
        plan_gap = float(2 * self.step * gap / used) if used > 0 else 0.0
        return Certificate(
            # the potentials say nothing of the plan unless they are proven at every token
            plan_gap=plan_gap if complete else np.inf,
            plan_checked_by="potentials",
            gradient_norm=self.at.norm / max(self.first.norm, self.at.rounding),
            optimality_gap=float(gap),
            optimality="proven" if complete else "unchecked",
            convex=(self.model.sign > 0 and heads.positive_semidefinite) or heads.vanish,
            proven_tokens=int(proven),
            total_tokens=self.cloud.n,
        )

    def _global_bounds(self, third: bool) -> PotentialBounds:
        heads = self.model.heads(self.energy_time)
        lower, lipschitz, concavity, hessian = self._sum(work.bounds, heads, self.model.sign, third)
        return PotentialBounds(
            lower=lower, lipschitz=lipschitz, concavity=concavity, hessian_lipschitz=hessian
        )

    def _surveyed_bounds(self) -> PotentialBounds:
        cells = Cells.cover(self.cloud.dim, SURVEY_LEVEL[self.cloud.dim])
        self.certificate_evaluations += 1
        fields = sharded_fields_at(self.model, self.cloud, self.energy_time, cells.centers, 2)
        bounds = self._global_bounds(third=True)
        curvature = Curvature.of(fields.heads, self.model.sign, bounds)
        return Survey.of(fields, cells.radii, curvature).bounds


def _two_loop(inner: Array, outer: Array) -> tuple[Array, Array]:
    r"""Coefficients of :math:`M^{-1} y_i` and of ``s_i`` in the direction, both (m,).

    ``inner``: ``<s_i, g>`` in column 0, ``<s_i, y_j>`` in column ``j + 1``; ``outer`` the same for
    ``<y_i, M^{-1} g>`` and ``<y_i, M^{-1} y_j>``.  Oldest pairs first.
    """
    count = inner.shape[0]
    along, across = np.zeros(count), np.zeros(count)
    used = [i for i in range(count) if inner[i, i + 1] > 0]
    for i in reversed(used):
        along[i] = -(inner[i, 0] + inner[i, 1:] @ along) / inner[i, i + 1]
    for i in used:
        change = outer[i, 0] + outer[i, 1:] @ along + inner[:, i + 1] @ across
        across[i] = -along[i] - change / inner[i, i + 1]
    return along, across
