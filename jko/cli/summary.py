"""What a run says at its end: a table, and advice where certificates are not proofs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..runs.curve import Curve
from ..steps.result import StepRecord
from ..transport.distance import wasserstein
from .directory import MOVEMENT

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["advice", "summary_table"]

#: Rounding allowed when a step's objective is compared with the energy it starts from.
ROUNDING = 1e-13

#: What a failed certificate says, and what to do about it.
FAILED_MEANS = "a token would gain by moving or splitting; use a smaller step"

#: Schemes whose (half) step minimises an objective that starts at the energy.
DECREASING = ("jko", "midpoint")


def summary_table(curves: dict[str, Curve], step_error: float | None) -> Table:
    """The run in numbers."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, title="Run", title_justify="left")
    for name, value in (*_movement_rows(curves[MOVEMENT]), *_flow_rows(curves, step_error)):
        table.add_row(Text(name), Text(value))
    return table


def _movement_rows(curve: Curve) -> Iterator[tuple[str, str]]:
    steps = curve.steps
    yield f"{curve.scheme} movement", f"{counted(len(steps), 'step')} to t = {curve.times[-1]:g}"
    yield "ended because", curve.message
    if not steps:
        return
    yield "step endings", _counts(step.status.name.lower() for step in steps)
    yield "certificates", _certificates(steps)
    yield "energy convex", f"in {sum(s.certificate.convex for s in steps)} of {len(steps)} steps"
    yield "worst plan gap", f"{max(step.certificate.plan_gap for step in steps):.2e} (relative)"
    worst = max(step.certificate.gradient_norm for step in steps)
    yield "worst gradient norm", f"{worst:.2e} (relative)"
    yield "largest optimality gap", f"{max(s.certificate.optimality_gap for s in steps):.2e}"
    if curve.scheme.split(",")[0] in DECREASING:
        yield "objective decreases in every step", _decrease(steps)
    yield "energy, start to end", f"{curve.energy[0]:.8g} to {curve.energy[-1]:.8g}"


def _decrease(steps: Sequence[StepRecord]) -> str:
    risen = [
        k
        for k, step in enumerate(steps)
        if step.objective > step.energy_before + ROUNDING * max(1.0, abs(step.energy_before))
    ]
    return "yes" if not risen else f"no: not in {len(risen)}, the first is step {risen[0]}"


def counted(number: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _certificates(steps: Sequence[StepRecord]) -> str:
    """How many of each kind; the failed ones with what that means."""
    counts = _counts(step.certificate.optimality for step in steps)
    return counts.replace("failed", f"failed ({FAILED_MEANS})")


def _counts(values: Iterator[str]) -> str:
    return ", ".join(f"{count} {value}" for value, count in Counter(values).most_common())


def _flow_rows(curves: dict[str, Curve], step_error: float | None) -> Iterator[tuple[str, str]]:
    movement = curves[MOVEMENT]
    flows = {name: curve for name, curve in curves.items() if name != MOVEMENT}
    for name, flow in flows.items():
        if not flow.success:
            yield f"{name} flow ended because", flow.message
    whole = {name: flow for name, flow in flows.items() if flow.success}
    if movement.times[-1] == max((flow.times[-1] for flow in whole.values()), default=np.nan):
        for name, flow in whole.items():
            yield f"W2(JKO, {name} flow) at the end", _distance(movement, flow)
    if len(whole) == 2:
        yield "W2(gradient flow, softmax flow) at the end", _distance(*whole.values())
    if step_error is not None:
        yield "flow, step against half the step", f"{step_error:.1e} (labelled distance)"
    if "softmax" in whole:
        yield "integrated defect of the softmax flow", f"{_last_integral(whole['softmax']):.4e}"


def _distance(a: Curve, b: Curve) -> str:
    return f"{wasserstein(a.final, b.final):.4e}"


def _last_integral(flow: Curve) -> float:
    return float(flow.integrals["defect"][-1])


def advice(curve: Curve) -> str | None:
    """A remedy, where a step is not proven and is longer than the advice for it."""
    from ..steps.advice import step_advice

    unproven = [k for k, s in enumerate(curve.steps) if s.certificate.optimality != "proven"]
    if not unproven or curve.model is None:
        return None
    k = unproven[0]
    step = curve.steps[k]
    advised = step_advice(curve.model, curve.cloud(k), step.time)
    if step.step <= advised.tightened:
        return None
    return (
        f"{len(unproven)} of {len(curve.steps)} steps are not proven to be optimal; the first, at "
        f"t = {step.time:g}, is {step.step:g} long, where up to {advised.tightened:.3g} can be "
        f"expected to be proven and up to {advised.guaranteed:.3g} is guaranteed to be"
    )
