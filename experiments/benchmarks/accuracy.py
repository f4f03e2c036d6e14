"""(f): velocity evaluations and time to a given error, against explicit Euler."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import jko
import numpy as np
from _measure import Section, Verdict, duration
from jko.problems import Problem, reference_case


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run to the horizon: its error, the kernel passes it made and its time."""

    error: float
    passes: int
    seconds: float


@contextmanager
def counted_passes(model: jko.AttentionModel) -> Iterator[list[int]]:
    """Counts calls of the model's kernel."""
    kernel = type(model.kernel)
    plain = kernel.sums
    count = [0]

    def sums(self: object, *args: object) -> object:
        count[0] += 1
        return plain(self, *args)

    kernel.sums = sums
    try:
        yield count
    finally:
        kernel.sums = plain


def run(problem: Problem, solve: Callable[[], jko.Curve]) -> Run:
    """Largest distance of a token from the known gradient flow at the horizon."""
    with counted_passes(problem.model) as count:
        start = time.perf_counter()
        curve = solve()
        seconds = time.perf_counter() - start
    gaps = np.linalg.norm(curve.points[-1] - problem.known["flow_gradient_T"], axis=1)
    return Run(error=float(gaps.max()), passes=count[0], seconds=seconds)


def flow(problem: Problem, **options: object) -> Run:
    span = (0.0, problem.horizon)
    return run(
        problem,
        lambda: jko.particle_flow(
            problem.model, problem.cloud, span, t_eval=[problem.horizon], **options
        ),
    )


def movement(problem: Problem, scheme: str, steps: int) -> Run:
    span, step = (0.0, problem.horizon), problem.horizon / steps
    return run(
        problem,
        lambda: jko.minimizing_movement(
            problem.model, problem.cloud, span, step, scheme, certify="none"
        ),
    )


def fewest_steps(
    problem: Problem, scheme: str, order: int, goal: float, first: int
) -> tuple[int, Run]:
    """The number of steps that just meets the goal, from the observed error and the order."""
    steps = first
    while True:
        trial = movement(problem, scheme, steps)
        if 0.7 * goal <= trial.error <= goal or (trial.error <= goal and steps <= first):
            return steps, trial
        factor = (trial.error / (0.9 * goal)) ** (1 / order)
        steps = max(first, math.ceil(steps * min(max(factor, 0.3), 8)))


def cheapest_flow(problem: Problem, goal: float) -> tuple[float, Run]:
    """The loosest tolerance of DOP853 that meets the goal."""
    for rtol in np.geomspace(1e-2, 1e-12, 21):
        trial = flow(problem, rtol=float(rtol))
        if trial.error <= goal:
            return float(rtol), trial
    raise RuntimeError("no tolerance of DOP853 meets the goal")


def accuracy(quick: bool) -> Section:
    goal = 1e-3 if quick else 1e-6
    problem = reference_case("sphere_three_heads")
    coarse, fine = (
        (count, flow(problem, method="euler", step=problem.horizon / count))
        for count in ((50, 100) if quick else (1000, 4000))
    )
    order = math.log(coarse[1].error / fine[1].error) / math.log(fine[0] / coarse[0])
    needed = fine[0] * fine[1].error / goal
    # passes and seconds of a step of Euler, the energy at the end included
    euler_passes = needed * fine[1].passes / fine[0]
    euler_seconds = needed * fine[1].seconds / fine[0]
    rows: list[list[object]] = [
        [
            f"Euler, {count} steps (measured)",
            f"{one.error:.1e}",
            one.passes,
            duration(one.seconds),
            "",
            "",
        ]
        for count, one in (coarse, fine)
    ]
    rows.append(
        [
            f"Euler, {needed:.3g} steps (extrapolated)",
            f"{goal:.0e}",
            f"{euler_passes:.3g}",
            duration(euler_seconds),
            "1",
            "1",
        ]
    )
    sides = {}
    rtol, sides["particle_flow"] = cheapest_flow(problem, goal)
    names = {"particle_flow": f"`particle_flow`, DOP853, rtol {rtol:.1e}"}
    schemes = {"midpoint": (2, 2)} if quick else {"midpoint": (2, 50), "richardson-midpoint": (4, 4)}
    for scheme, (scheme_order, first) in schemes.items():
        steps, sides[scheme] = fewest_steps(problem, scheme, scheme_order, goal, first)
        names[scheme] = f"`minimizing_movement`, {scheme}, {steps} steps"
    for key, one in sides.items():
        rows.append(
            [
                names[key],
                f"{one.error:.1e}",
                one.passes,
                duration(one.seconds),
                f"{euler_passes / one.passes:.0f}",
                f"{euler_seconds / one.seconds:.0f}",
            ]
        )
    return Section(
        title=f"Evaluations to an error of {goal:g}",
        text=(
            "Gradient flow of the reference case `sphere_three_heads` (40 tokens, three oscillating "
            "heads, T = 1); error: largest distance of a token from the independently computed "
            "flow at T. Passes: calls of the kernel, whatever for. Steps without certificates. "
            f"Euler would take too long at this error: its measured order is {order:.3f} and the "
            "error is extrapolated by order one."
        ),
        columns=("method", "error", "passes", "time", "fewer passes", "faster"),
        rows=rows,
        verdicts=[
            Verdict(
                name=f"(f) kernel passes to {goal:g} against explicit Euler, {key}",
                target="at least 100 times fewer",
                measured=f"{euler_passes / one.passes:.0f} times",
                met=euler_passes / one.passes >= 100,
            )
            for key, one in sides.items()
        ],
    )
