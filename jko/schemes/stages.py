r"""Stages of labelled proximal problems that share one frozen mobility.

With former positions :math:`u_{-q}, \dots, u_0` (:math:`u_0` the present tokens) stage m = 1..M is

.. math::

    u_m = \arg\min_y\; E(y, t_e) + \sum_{i < m} \frac{\gamma_{mi}}{2\tau} \sum_j a_j \beta_j\, d^2(y_j, u_{i,j}),

and, unless the mobility is given, :math:`\beta_j = \hat b(z_j; \mu_z, t_e)` at the points ``z`` a given fraction
of the way from :math:`u_0` to :math:`u_M`.  This equation for :math:`\beta` is solved by a fixed point
around the stages: the mobility is never differentiated, so each of its iterates is a
minimisation like any other.  The stages are solved as accurately as the mobility is known, from
where they ended before, so that all iterates together cost little more than one solution.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from ..attention.model import AttentionModel
from ..steps.particles import TokenSolution, Warm, solve_tokens
from ..steps.pointwise import TokenProblems
from ..steps.problem import Anchor, Coupling, Evaluation, Objective, StepProblem
from ..steps.proximal import StepOptions
from ..steps.result import StepError, StepStats, StepStatus
from ..transport.cost import SourceCost
from ..transport.plan import MEMORY_LIMIT, optimal_plan, plan_bytes
from .base import along

__all__ = ["StagePlan", "StageSolution", "solve_stages"]

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

#: Mobility updates of one step.
UPDATES = 60
#: How often a relabelling in the last sweep may undo a mobility that had converged.
ATTEMPTS = 3
#: Relative gradient norm of the stages before the first update.
LOOSE = 1e-3
#: Gradient norm of the next stages relative to the last change of the mobility.
FORCING = 1e-2
#: Relative changes of a mobility below this are rounding.
MOBILITY_ROUNDING = 1e-13
#: The mobility moves at least this fraction of the way to what the solution asks for.
SMALLEST_DAMPING = 1 / 16
#: A plan cheaper than the labels by less (relative) is rounding.
PLAN_TOLERANCE = 1e-9

NO_WORK = StepStats(iterations=0, gradient_evaluations=0)


@dataclass(frozen=True, kw_only=True, eq=False)
class StagePlan:
    r"""What one step asks.

    Attributes
    ----------
    model : AttentionModel
    weights : (n,)
        Token weights; tokens of weight zero are test particles.
    sources : tuple of (n, d) arrays
        Former positions, oldest first; the last are the present tokens.
    rows : tuple of tuples
        Coefficients :math:`\gamma_{mi}`, one row per stage, over sources and earlier stages.
    step : float
        The :math:`\tau` of the formula.
    energy_time : float
        The :math:`t_e` of the energy, and of the heads of the mobility.
    fraction : float
        Where between the present and the last stage an implicit mobility is taken.
    """

    model: AttentionModel
    weights: Array
    sources: tuple[Array, ...]
    rows: tuple[tuple[float, ...], ...]
    step: float
    energy_time: float
    fraction: float = 1.0

    def take(self, index: IntArray) -> StagePlan:
        """The plan of some of the tokens."""
        sources = tuple(x[index] for x in self.sources)
        return replace(self, weights=self.weights[index], sources=sources)

    def anchors(
        self, row: tuple[float, ...], positions: list[Array], beta: Array
    ) -> tuple[Anchor, ...]:
        """Transport terms of the stage with coefficients ``row``."""
        pairs = zip(positions, row, strict=True)
        return tuple(Anchor(SourceCost(x, beta), gamma) for x, gamma in pairs if gamma != 0)

    def problem(
        self, row: tuple[float, ...], positions: list[Array], beta: Array, labelled: bool
    ) -> StepProblem:
        """The problem of the stage with coefficients ``row``."""
        return StepProblem(
            model=self.model,
            weights=self.weights,
            step=self.step,
            energy_time=self.energy_time,
            anchors=self.anchors(row, positions, beta),
            start=self.sources[-1],
            labelled=labelled,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class StageSolution:
    r"""The outcome of a step: the stages :math:`u_1, \dots, u_M`, the last of which is the new cloud.

    Attributes
    ----------
    stages : tuple of (n, d) arrays
        Positions of all tokens after every stage.
    mobility : (n,)
        The mobility they were solved with.
    updates : int
        How often it was updated.
    last : TokenSolution
        The last stage, for the tokens of positive weight.
    status : StepStatus
    stats : StepStats
        Of all stages and updates together, mobility evaluations included.
    """

    stages: tuple[Array, ...]
    mobility: Array
    updates: int
    last: TokenSolution
    status: StepStatus
    stats: StepStats


def solve_stages(plan: StagePlan, mobility: Array | None, options: StepOptions) -> StageSolution:
    r"""Solve the stages with the mobility :math:`\beta_i` given, or with their own if it is None.

    Raises
    ------
    StepError
        If a stage would end above the objective of the present tokens.
    """
    charged = np.flatnonzero(plan.weights > 0)
    test = np.flatnonzero(plan.weights == 0)
    iteration = _Iteration(plan=plan.take(charged), options=options)
    converged = iteration.run(None if mobility is None else mobility[charged])
    beta = np.empty(plan.weights.size)
    beta[charged] = iteration.beta
    stages = [np.empty_like(plan.sources[-1]) for _ in plan.rows]
    for all_tokens, solution in zip(stages, iteration.solutions, strict=True):
        all_tokens[charged] = solution.at.points
    if test.size:
        given = None if mobility is None else mobility[test]
        followed, beta[test] = _follow(plan.take(test), iteration, given)
        for all_tokens, points in zip(stages, followed, strict=True):
            all_tokens[test] = points
    last = iteration.solutions[-1]
    failed = [s.status for s in iteration.solutions if not s.status.success]
    status = failed[0] if failed else last.status
    if status.success and not converged:
        exhausted = iteration.exhausted
        status = StepStatus.MAX_EVALUATIONS if exhausted else StepStatus.STALLED
    elif status.success and iteration.splits:
        status = StepStatus.PLAN_SPLITS
    return StageSolution(
        stages=tuple(stages),
        mobility=beta,
        updates=iteration.updates,
        last=last,
        status=status,
        stats=iteration.stats,
    )


@dataclass(eq=False)
class _Iteration:
    """Stages and mobility of the tokens of positive weight, while they are being solved."""

    plan: StagePlan
    options: StepOptions
    first: Evaluation = field(init=False)
    beta: Array = field(init=False)
    solutions: list[TokenSolution] = field(default_factory=list)
    problems: list[StepProblem] = field(default_factory=list)
    updates: int = 0
    splits: bool = False
    stats: StepStats = NO_WORK

    def run(self, mobility: Array | None) -> bool:
        """Solve; whether the mobility converged (it has, if it is given)."""
        self._begin(mobility)
        if mobility is not None:
            self._sweep(self.options.tolerance, final=True)
            self._check_labels()
            return True
        accuracy = max(self.options.tolerance, MOBILITY_ROUNDING)
        loose = max(self.options.tolerance, LOOSE)
        acceleration = Acceleration()
        final, attempts = False, 0
        while self.updates < UPDATES and attempts < ATTEMPTS and not self.exhausted:
            self._sweep(self.options.tolerance if final else loose, final)
            proposal = self._proposal()
            change = float(np.abs(np.log(proposal / self.beta)).max())
            if final and change <= 10 * accuracy:
                self._check_labels()
                return True
            attempts += final
            final = change <= accuracy
            if not final:
                self.beta = acceleration.next(self.beta, proposal)
                self.updates += 1
                loose = max(self.options.tolerance, min(loose, FORCING * change))
        self._sweep(self.options.tolerance, final=True)
        self._check_labels()
        return False

    @property
    def exhausted(self) -> bool:
        """Whether the evaluations of the step are used up."""
        return self.stats.gradient_evaluations >= self.options.max_evaluations

    def _begin(self, mobility: Array | None) -> None:
        """One kernel pass at the present tokens, which serves every later start."""
        plan = self.plan
        unit = np.ones(plan.weights.size)
        problem = plan.problem(plan.rows[0], list(plan.sources), unit, True)
        self.first = Objective(problem, Coupling.labels(plan.weights))(plan.sources[-1])
        self._count(gradient_evaluations=1)
        self.beta = self.first.fields.effective_mobility if mobility is None else mobility

    def _sweep(self, tolerance: float, final: bool) -> None:
        """Solve all stages with the present mobility, from where the last sweep ended."""
        positions = list(self.plan.sources)
        guesses = [solution.at for solution in self.solutions]
        self.problems, self.solutions = [], []
        guess = self.first
        for m, row in enumerate(self.plan.rows):
            guess = guesses[m] if guesses else guess
            problem = self.plan.problem(row, positions, self.beta, not final)
            certify = self.options.certify if final and m == len(self.plan.rows) - 1 else "none"
            solution = self._solve(problem, tolerance, certify, guess)
            self.problems.append(problem)
            self.solutions.append(solution)
            positions.append(solution.at.points)
            guess = solution.at

    def _solve(
        self, problem: StepProblem, tolerance: float, certify: str, guess: Evaluation
    ) -> TokenSolution:
        budget = max(1, self.options.max_evaluations - self.stats.gradient_evaluations)
        warm = Warm(first=self.first, guess=guess)
        solution = solve_tokens(problem, tolerance, budget, certify, warm)
        before, after = solution.first.value, solution.at.value
        if after > before + 1e-13 * max(1.0, abs(before)):
            raise StepError(
                f"a stage would end with objective {after:.17g} above {before:.17g}, that of the "
                "present tokens; this is a defect of the minimiser, please report it"
            )
        self._count(**vars(solution.stats))
        return solution

    def _count(self, **work: int) -> None:
        self.stats = replace(
            self.stats, **{name: getattr(self.stats, name) + count for name, count in work.items()}
        )

    def _proposal(self) -> Array:
        """The mobility that the present solution asks for."""
        end = self.solutions[-1].at
        if self.plan.fraction == 1:
            return end.fields.effective_mobility
        points = along(self.plan.sources[-1], end.points, self.plan.fraction)
        self._count(gradient_evaluations=1)
        return self.problems[-1].fields(points, points, 0).effective_mobility

    def _check_labels(self) -> None:
        """Whether the labels carry an optimal plan from the present tokens to the last stage."""
        free = self.problems[-1].optimises_plan
        coupling = self.solutions[-1].coupling if free else self._cheaper_plan()
        self.splits = not coupling.identity

    def _cheaper_plan(self) -> Coupling:
        """The optimal coupling of the present tokens and the last stage, preferring the labels."""
        x, y, weights = self.plan.sources[-1], self.solutions[-1].at.points, self.plan.weights
        labels = Coupling.labels(weights)
        if keeps_nearest(x, y) or plan_bytes(*2 * (weights.size,)) > MEMORY_LIMIT:
            return labels
        cost = SourceCost(x, self.beta)
        used = float(weights @ cost.pairs(np.arange(weights.size), y))
        best = optimal_plan(cost.matrix(y), weights, weights)
        self._count(plans=1)
        rounding = 1e4 * np.finfo(float).eps ** 2 * self.beta.max()
        if used <= best.cost * (1 + PLAN_TOLERANCE) + rounding:
            return labels
        self._count(plan_changes=1)
        return Coupling.from_plan(best.plan, weights)


def keeps_nearest(x: Array, y: Array) -> bool:
    """Whether every ``y_i`` is the point of ``y`` nearest to ``x_i``.

    Every row of the cost then has its minimum on the diagonal: the labels are an optimal plan
    whatever the mobilities and weights.
    """
    nearest, _ = cKDTree(y).query(x)
    own: Array = np.linalg.norm(x - y, axis=1)
    return bool((own <= nearest * (1 + 1e-12) + 1e-15).all())


class Acceleration:
    """Anderson acceleration of the logarithms of the mobilities, damped where they grow apart.

    Weak heads: the plain fixed point contracts by a factor of the order of the step.  Strong
    heads: it need not contract at all; whenever the residual grows, the history is dropped and
    the damping halved.
    """

    def __init__(self, depth: int = 4) -> None:
        self._points: deque[Array] = deque(maxlen=depth)
        self._residuals: deque[Array] = deque(maxlen=depth)
        self._last = np.inf
        self._damping = 1.0

    def next(self, beta: Array, proposal: Array) -> Array:
        """The next mobility, given what ``beta`` led to."""
        point = np.log(beta)
        residual = np.log(proposal) - point
        size = float(np.abs(residual).max())
        if size > self._last:
            self._points.clear()
            self._residuals.clear()
            self._damping = max(self._damping / 2, SMALLEST_DAMPING)
        else:
            self._damping = min(1.5 * self._damping, 1.0)
        self._last = size
        self._points.append(point)
        self._residuals.append(residual)
        new = point + self._damping * residual
        if len(self._points) > 1:
            changes = np.diff(np.array(self._residuals), axis=0).T
            moves = np.diff(np.array(self._points), axis=0).T
            share = np.linalg.lstsq(changes, residual, rcond=1e-10)[0]
            new = new - (moves + self._damping * changes) @ share
        return np.exp(new)


def _follow(
    plan: StagePlan, iteration: _Iteration, mobility: Array | None
) -> tuple[list[Array], Array]:
    """Test particles through the stages of the others: positions after each, and mobility."""
    start = plan.sources[-1]
    beta = iteration.problems[0].fields(start, iteration.plan.sources[-1], 0).effective_mobility
    if mobility is not None:
        beta = mobility
    rows = np.arange(start.shape[0])
    guesses = [start] * len(plan.rows)
    for _ in range(UPDATES):
        positions = list(plan.sources)
        for m, row in enumerate(plan.rows):
            problem, others = iteration.problems[m], iteration.solutions[m].at.points
            particles = TokenProblems(problem, others, plan.anchors(row, positions, beta))
            guesses[m], _ = particles.minimise(rows, guesses[m])
            positions.append(guesses[m])
        if mobility is not None:
            break
        at = along(start, guesses[-1], plan.fraction)
        others = along(iteration.plan.sources[-1], iteration.solutions[-1].at.points, plan.fraction)
        proposal = iteration.problems[-1].fields(at, others, 0).effective_mobility
        change = float(np.abs(np.log(proposal / beta)).max())
        beta = proposal
        if change <= iteration.options.tolerance:
            break
    return guesses, beta
