r"""The proximal step on tokens: positions and plan to joint optimality, then the certificate.

Alternates (i) positions for a fixed coupling and (ii) the optimal plan for fixed positions,
both of which decrease the objective, until neither moves; then asks the certificate whether
some token would rather be elsewhere, and restarts from there while that pays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .certificate import RESOLUTION, GapReport, full_gap
from .plans import PlanCheck, check_plan, cost_floor
from .pointwise import TokenProblems
from .positions import minimise_positions
from .problem import Coupling, Evaluation, Objective, StepProblem
from .result import Certificate, StepStats, StepStatus

__all__ = ["TokenSolution", "Warm", "solve_tokens"]

Array = NDArray[np.float64]

#: Plans may be exchanged this often; every exchange strictly lowers the objective.
PLAN_CHANGES = 50
RESTARTS = 12
SINGLE_RESTARTS = 8


@dataclass(eq=False)
class _Work:
    """Work counts of one step while it runs."""

    iterations: int = 0
    gradient_evaluations: int = 0
    certificate_evaluations: int = 0
    plans: int = 0
    plan_changes: int = 0
    restarts: int = 0

    def stats(self) -> StepStats:
        return StepStats(**vars(self))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Settled:
    """A jointly optimal configuration (to tolerance) and what was learnt on the way."""

    at: Evaluation
    coupling: Coupling
    converged: bool
    rounding: float
    plan: PlanCheck


@dataclass(frozen=True, kw_only=True, eq=False)
class _Goal:
    """What "converged" means in this step."""

    reference: float
    tolerance: float
    max_evaluations: int


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenSolution:
    """The outcome of a step on tokens of positive weight; ``first`` is the start's evaluation."""

    first: Evaluation
    at: Evaluation
    coupling: Coupling
    energy_before: float
    certificate: Certificate
    status: StepStatus
    stats: StepStats


@dataclass(frozen=True, kw_only=True, eq=False)
class Warm:
    """What is known from a problem of the same energy and start with other transport terms.

    Attributes
    ----------
    first : Evaluation
        At the start.
    guess : Evaluation
        Where to begin, unless the start itself has the lower objective.
    """

    first: Evaluation
    guess: Evaluation

    def assemble(self, objective: Objective) -> tuple[Evaluation, Evaluation]:
        """Both evaluations under another objective: no kernel pass."""
        first = objective.assemble(self.first.points, self.first.fields)
        guess = objective.assemble(self.guess.points, self.guess.fields)
        return first, guess if guess.value <= first.value else first


def solve_tokens(
    problem: StepProblem,
    tolerance: float,
    max_evaluations: int,
    certify: str,
    warm: Warm | None = None,
) -> TokenSolution:
    """Solve a step problem.

    Parameters
    ----------
    problem : StepProblem
    tolerance : float
        Relative gradient norm to reach.
    max_evaluations : int
        Kernel passes the position solver may spend; restarts get as many again.
    certify : {"full", "local", "none"}
        ``"full"``: proof, search and restarts; ``"local"``: the O(n) proof only; ``"none"``:
        stationarity and plan alone.
    warm : Warm, optional
        The solution of a sibling problem to begin from.
    """
    work = _Work()
    labels = Coupling.labels(problem.weights)
    objective = Objective(problem, labels)
    if warm is None:
        first = begin = objective.begin()
    else:
        first, begin = warm.assemble(objective)
    work.gradient_evaluations += objective.evaluations
    goal = _Goal(reference=first.norm, tolerance=tolerance, max_evaluations=max_evaluations)
    settled = _settle(problem, labels, begin, goal, certify, work)
    end = _Restarted(settled=settled, report=settled.plan.proof)
    if certify == "full":
        settled = _whole(problem, settled, goal, work)
        end = _restart(problem, settled, _full_report(problem, settled, work), goal, work)
    settled, report = end.settled, end.report
    return TokenSolution(
        first=first,
        at=settled.at,
        coupling=settled.coupling,
        energy_before=first.energy,
        certificate=_certificate(problem, settled, report, goal),
        status=_status(end, goal, work),
        stats=work.stats(),
    )


def _settle(
    problem: StepProblem,
    coupling: Coupling,
    at: Evaluation,
    goal: _Goal,
    certify: str,
    work: _Work,
) -> _Settled:
    """Alternate positions and plan until both are optimal."""
    budget = work.gradient_evaluations + goal.max_evaluations
    for change in range(PLAN_CHANGES + 1):
        objective = Objective(problem, coupling)
        objective.evaluations = work.gradient_evaluations
        rounding = objective.rounding(at)
        threshold = max(goal.tolerance * goal.reference, rounding)
        found = minimise_positions(objective, at, threshold, budget)
        at = found.best
        work.iterations += found.iterations
        work.gradient_evaluations = objective.evaluations
        check = check_plan(problem, coupling, at, certify)
        work.certificate_evaluations += check.evaluations
        work.plans += check.plans
        if check.better is None or change == PLAN_CHANGES:
            break
        work.plan_changes += 1
        at, coupling = _follow(problem, check.better, at.points, work)
    return _Settled(
        at=at, coupling=coupling, converged=found.converged, rounding=rounding, plan=check
    )


def _follow(
    problem: StepProblem, coupling: Coupling, points: Array, work: _Work
) -> tuple[Evaluation, Coupling]:
    """Evaluate under a new coupling; after a pure relabelling the labels follow the mass."""
    target = None if coupling.identity else coupling.permutation
    if target is not None:
        points, coupling = points[target], Coupling.labels(problem.weights)
    work.gradient_evaluations += 1
    return Objective(problem, coupling)(points), coupling


def _full_report(problem: StepProblem, settled: _Settled, work: _Work) -> GapReport:
    if settled.plan.proof.proven.all():
        return settled.plan.proof
    problems = TokenProblems(problem, settled.at.points, problem.anchors)
    report = full_gap(problems, settled.at, settled.coupling, settled.plan.proof)
    work.certificate_evaluations += problems.evaluations
    return report


def _whole(problem: StepProblem, settled: _Settled, goal: _Goal, work: _Work) -> _Settled:
    """Where the plan splits mass, send every token where most of it goes, if that is better.

    Unequal tokens that trade places split the plan; whole tokens can do so too, and only a
    labelled configuration can be proven and restarted.
    """
    coupling = settled.coupling
    if coupling.identity:
        return settled
    order = np.lexsort((coupling.mass, coupling.rows))
    largest = order[np.diff(coupling.rows[order], append=-1) != 0]
    points = settled.at.points[coupling.columns[largest]]
    labels = Coupling.labels(problem.weights)
    work.restarts += 1
    work.gradient_evaluations += 1
    trial = _settle(problem, labels, Objective(problem, labels)(points), goal, "full", work)
    noise = RESOLUTION * max(1.0, abs(settled.at.value))
    return trial if trial.at.value < settled.at.value - noise else settled


@dataclass(frozen=True, kw_only=True, eq=False)
class _Restarted:
    """The best configuration found, its gaps, and whether whole-token moves are exhausted."""

    settled: _Settled
    report: GapReport
    exhausted: bool = False


def _restart(
    problem: StepProblem, settled: _Settled, report: GapReport, goal: _Goal, work: _Work
) -> _Restarted:
    """Move tokens to their competing positions while that lowers the objective.

    All of them at once first; if that overshoots, the half with the largest gaps, and so on
    down to each token alone.  When no such move helps although gaps remain, splitting does:
    the objective's derivative along moving a fraction of token ``i`` is ``-a_i gap_i < 0``.
    """
    while settled.coupling.identity and report.worse.any() and work.restarts < RESTARTS:
        improved = None
        for tokens in _restart_groups(problem.weights * np.where(report.worse, report.gap, 0)):
            work.restarts += 1
            trial = _moved(problem, settled, report, tokens, goal, work)
            noise = RESOLUTION * max(1.0, abs(settled.at.value))
            if trial.at.value < settled.at.value - noise:
                improved = trial
                break
        if improved is None:
            return _Restarted(settled=settled, report=report, exhausted=True)
        settled = improved
        report = _full_report(problem, settled, work)
    return _Restarted(settled=settled, report=report)


def _restart_groups(loss: Array) -> list[NDArray[np.intp]]:
    """Tokens by decreasing loss: all, half of them, ..., then the first few one by one."""
    tokens = np.argsort(-loss)[: int((loss > 0).sum())]
    groups, size = [], tokens.size
    while size > 1:
        groups.append(tokens[:size])
        size //= 2
    return groups + [tokens[k : k + 1] for k in range(min(tokens.size, SINGLE_RESTARTS))]


def _moved(
    problem: StepProblem,
    settled: _Settled,
    report: GapReport,
    tokens: NDArray[np.intp],
    goal: _Goal,
    work: _Work,
) -> _Settled:
    """Settle again after some tokens were put at their competing positions."""
    points = settled.at.points.copy()
    points[tokens] = report.competitor[tokens]
    at, coupling = _follow(problem, settled.coupling, points, work)
    return _settle(problem, coupling, at, goal, "full", work)


def _certificate(
    problem: StepProblem, settled: _Settled, report: GapReport, goal: _Goal
) -> Certificate:
    heads = problem.heads
    gap = float(problem.weights @ report.gap)
    plan = settled.plan
    plan_gap = plan.gap
    if not np.isfinite(plan_gap) and report.proven.all():
        used = 2 * problem.step * settled.at.transport
        plan_gap = 2 * problem.step * gap / max(used, cost_floor(problem))
    norm = settled.at.norm
    return Certificate(
        plan_gap=plan_gap,
        plan_checked_by=plan.checked_by,
        gradient_norm=norm / max(goal.reference, settled.rounding) if norm > 0 else 0.0,
        optimality_gap=gap,
        optimality=report.optimality,
        convex=(problem.model.sign > 0 and heads.positive_semidefinite) or heads.vanish,
        proven_tokens=int(report.proven.sum()),
        total_tokens=problem.weights.size,
    )


def _status(end: _Restarted, goal: _Goal, work: _Work) -> StepStatus:
    settled = end.settled
    if not settled.converged and settled.at.norm > 100 * settled.rounding:
        if work.gradient_evaluations >= goal.max_evaluations:
            return StepStatus.MAX_EVALUATIONS
        return StepStatus.STALLED
    if end.report.worse.any():
        return StepStatus.SPLIT if end.exhausted else StepStatus.NOT_GLOBAL
    if settled.at.norm > goal.tolerance * goal.reference:
        return StepStatus.ROUNDING
    return StepStatus.CONVERGED
