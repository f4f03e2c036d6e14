r"""The step on fixed nodes by conditional gradients, without any convex programming library.

Three instruments, each starting where the last one stalls, all of which lower the objective:

1. *Plain* conditional gradients, `ot.optim.semirelaxed_cg` of POT with exact line search: all rows
   move towards their best nodes at once.  Fast at first, then :math:`O(1/k)`.
2. *Pairwise* sweeps: one row after the other shifts mass from its worst used node to its best one,
   with exact line search.  Linear convergence, slow where many rows act through a few modes of the
   kernel.
3. *Corrective* steps: Newton's method over the shares of the rows that are split, up to the first
   share that vanishes (Wolfe's minimum-norm-point idea).  Few rows are split, so the systems are small.

They need no convexity: for an indefinite kernel the result is a stationary plan.

References
----------
Lacoste-Julien, Jaggi, "On the global linear convergence of Frank-Wolfe optimization variants"
(NeurIPS 2015).  Vincent-Cuaz et al., "Semi-relaxed Gromov-Wasserstein divergence" (ICLR 2022).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from .columns import Goal, GridSolution
from .problem import GridPlan, GridState, SupportProblem, histogram

__all__ = ["solve_conditional"]

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

#: Plain iterations: every one of them costs a dozen passes over the dense plan.
PLAIN_ITERATIONS = 30

#: Sweeps before a corrective phase, at least; they go on while they empty shares, which they
#: do for less than a corrective step (which solves a system in all split shares).
SWEEPS = 5
SHRINKING = 0.98

#: Steps within a corrective phase, and the largest system of one.
EXCHANGES = 400
LARGEST_SYSTEM = 1500

#: Rounds without progress after which the loop gives up.
PATIENCE = 3

#: Shift of corrective systems, relative to their largest diagonal entry: directions flatter than
#: this are decided by the ratio test.
SHIFT = 1e-13


def solve_conditional(problem: SupportProblem, goal: Goal, start: GridState) -> GridSolution:
    """Solve by conditional gradients; the objective never increases."""
    state, iterations, idle = start, 0, 0
    if state.gap > max(goal.gap, state.rounding):
        plan, iterations = _plain_steps(problem, goal, start)
        state = problem.state(plan)
    while state.gap > max(goal.gap, state.rounding) and idle < PATIENCE:
        if iterations >= goal.max_iterations:
            return GridSolution(state=state, iterations=iterations, exhausted=True)
        trial, sweeps = _swept(problem, goal, state, goal.max_iterations - iterations)
        trial = problem.state(_corrected(problem, trial))
        iterations += sweeps + 1
        progress = trial.value < state.value or trial.gap < state.gap / 2
        state = trial if progress else state
        idle = 0 if progress else idle + 1
    return GridSolution(state=state, iterations=iterations, exhausted=False)


def _plain_steps(problem: SupportProblem, goal: Goal, start: GridState) -> tuple[GridPlan, int]:
    """Conditional gradients of POT from ``start``; stops on our gap, which POT does not report."""
    import ot

    shape = problem.rate.shape
    kernel = problem.kernel
    count = 0

    def energy(plan: Array) -> float:
        measure = plan.sum(axis=0)
        return 0.5 * float(measure @ problem.potential(measure))

    def potential(plan: Array) -> Array:
        return np.broadcast_to(kernel @ plan.sum(axis=0), shape)

    def exact_search(
        cost: object, plan: Array, change: Array, gradient: Array, value: float, *_: object,
        **__: object,
    ) -> tuple[float, int, float]:
        nonlocal count
        count += 1
        slope = float(np.vdot(change, gradient))
        if -slope <= goal.gap:
            return 0.0, 1, value
        shift = change.sum(axis=0)
        bend = float(shift @ (kernel @ shift))
        length = min(1.0, -slope / bend) if bend > 0 else 1.0
        return length, 1, value + length * slope + length**2 * bend / 2

    dense = np.zeros(shape)
    dense[start.plan.rows, start.plan.columns] = start.plan.mass
    plan = ot.optim.semirelaxed_cg(
        problem.weights,
        np.full(problem.nodes, 1 / problem.nodes),
        problem.rate,
        1.0,
        energy,
        potential,
        G0=dense,
        line_search=exact_search,
        numItermax=PLAIN_ITERATIONS,
        stopThr=0.0,
        stopThr2=1e-300,
    )
    rows, columns = np.nonzero(plan)
    return GridPlan(rows, columns, plan[rows, columns]).repaired(problem.weights), count


def _swept(
    problem: SupportProblem, goal: Goal, state: GridState, budget: int
) -> tuple[GridState, int]:
    """Pairwise sweeps until they empty no more shares; how many there were."""
    for count in range(1, budget + 1):
        split = state.plan.rows.size - problem.weights.size
        state = problem.state(_pairwise_sweep(problem, state, goal))
        left = state.plan.rows.size - problem.weights.size
        settled = count >= SWEEPS and left > SHRINKING * split
        if settled or state.gap <= goal.gap:
            break
    return state, count


def _pairwise_sweep(problem: SupportProblem, state: GridState, goal: Goal) -> GridPlan:
    """One pass over the rows that a better node is open to."""
    kernel, diagonal = problem.kernel, problem.kernel.diagonal()
    order = np.argsort(state.plan.rows, kind="stable")
    counts = np.bincount(state.plan.rows, minlength=problem.weights.size)
    split = np.cumsum(counts)[:-1]
    columns = np.split(state.plan.columns[order], split)
    masses = np.split(state.plan.mass[order], split)
    potential = state.potential.copy()
    for i in np.flatnonzero(state.token_gap > goal.gap / 4):
        reduced = problem.rate[i] + potential
        used, mass = columns[i], masses[i]
        worst = int(reduced[used].argmax())
        source, target = int(used[worst]), int(reduced.argmin())
        drop = float(reduced[source] - reduced[target])
        if drop <= 0:
            continue
        bend = float(diagonal[source] + diagonal[target] - 2 * kernel[source, target])
        moved = float(mass[worst])
        if bend * moved > drop:
            moved = drop / bend
        potential += moved * (kernel[target] - kernel[source])
        columns[i], masses[i] = _shift(used, mass, worst, target, moved)
    rows = np.repeat(np.arange(problem.weights.size), [c.size for c in columns])
    plan = GridPlan(rows, np.concatenate(columns), np.concatenate(masses))
    return plan.repaired(problem.weights)


def _shift(
    used: IntArray, mass: Array, worst: int, target: int, moved: float
) -> tuple[IntArray, Array]:
    """A row after ``moved`` went from its entry ``worst`` to the node ``target``."""
    mass = mass.copy()
    mass[worst] -= moved
    found = np.flatnonzero(used == target)
    if found.size:
        mass[found[0]] += moved
    else:
        used, mass = np.append(used, target), np.append(mass, moved)
    if mass[worst] <= 0:
        used, mass = np.delete(used, worst), np.delete(mass, worst)
    return used, mass


def _corrected(problem: SupportProblem, state: GridState) -> GridPlan:
    """Newton steps over the split rows, dropping every share that vanishes."""
    plan = state.plan
    potential = state.potential
    for _ in range(EXCHANGES):
        base, free = _transfers(plan, problem.weights.size)
        if not 0 < free.size <= LARGEST_SYSTEM:
            break
        reduced = problem.rate[plan.rows, plan.columns] + potential[plan.columns]
        slope = reduced[free] - reduced[base]
        step = _newton_direction(problem.kernel, plan.columns[free], plan.columns[base], slope)
        if step is None or not slope @ step < 0:
            break
        change = np.zeros(plan.rows.size)
        change[free] = step
        np.add.at(change, base, -step)
        shift = histogram(plan.columns, change, problem.nodes)
        bend = problem.potential(shift)
        curved = float(shift @ bend)
        length = min(1.0, -float(slope @ step) / curved) if curved > 0 else 1.0
        shrinking = change < 0
        room = np.full(change.size, np.inf)
        room[shrinking] = -plan.mass[shrinking] / change[shrinking]
        blocking = int(room.argmin())
        length = min(length, float(room[blocking]))
        mass = plan.mass + length * change
        blocked = length == room[blocking]
        if blocked:
            mass[blocking] = 0.0
        plan = GridPlan(plan.rows, plan.columns, mass).repaired(problem.weights)
        potential = problem.potential(plan.measure(problem.nodes))
        if not blocked:
            break
    return plan


def _transfers(plan: GridPlan, sources: int) -> tuple[IntArray, IntArray]:
    """For every entry beyond the largest of its row: the largest one, and itself."""
    order = np.lexsort((-plan.mass, plan.rows))
    first = np.searchsorted(plan.rows[order], np.arange(sources))
    largest = order[first]
    free = np.ones(plan.rows.size, dtype=bool)
    free[largest] = False
    index = np.flatnonzero(free)
    return largest[plan.rows[index]], index


def _newton_direction(
    kernel: Array, target: IntArray, source: IntArray, slope: Array
) -> Array | None:
    """Minimiser of the quadratic in the transfers; None where it is not convex."""
    hessian = (
        kernel[np.ix_(target, target)]
        + kernel[np.ix_(source, source)]
        - kernel[np.ix_(target, source)]
        - kernel[np.ix_(source, target)]
    )
    largest = float(hessian.diagonal().max(initial=0.0))
    if not largest > 0:
        return None
    hessian[np.diag_indices_from(hessian)] += SHIFT * largest
    try:
        direction: Array = -cho_solve(cho_factor(hessian), slope)
    except LinAlgError:
        return None
    return direction
