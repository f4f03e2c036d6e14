"""The table of all steps of a movement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..runs.curve import Curve
from ..steps.result import StepRecord
from .page import Section, badge, table

__all__ = ["step_section"]

#: Longer runs show equispaced steps, and every step whose certificate failed.
MOST = 1000

HEAD = (
    "step",
    "t",
    "τ",
    "objective",
    "descent",
    "W²",
    "energy",
    "gradient norm",
    "plan gap",
    "optimality gap",
    "certificate",
    "proven tokens",
    "passes",
    "status",
)

KINDS = {"proven": "good", "searched": "note", "failed": "bad"}


def step_section(movement: Curve) -> Section:
    """Every step's numbers, folded away."""
    steps = movement.steps
    if not steps:
        return Section(key="steps", title="Steps", body="<p>This curve has no steps.</p>")
    index = _shown(steps)
    rows = [_row(k, steps[k]) for k in index]
    note = "" if index.size == len(steps) else f" ({index.size} of {len(steps)} are shown)"
    whole = "The only step" if len(steps) == 1 else f"All {len(steps)} steps"
    body = (
        f"<details><summary>{whole}{note}</summary>\n"
        + table(HEAD, rows, "numbers", raw=(10,))
        + "\n</details>"
    )
    return Section(key="steps", title="Steps", body=body)


def _shown(steps: Sequence[StepRecord]) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
    even = np.linspace(0, len(steps) - 1, min(len(steps), MOST)).round().astype(np.intp)
    failed = [
        k for k, s in enumerate(steps) if s.certificate.optimality == "failed" or not s.success
    ]
    return np.union1d(even, np.array(failed[:MOST], dtype=np.intp))


def _row(k: int, step: StepRecord) -> tuple[str, ...]:
    certificate = step.certificate
    return (
        f"{k + 1}",
        f"{step.time + step.step:.6g}",
        f"{step.step:.4g}",
        f"{step.objective:.10g}",
        f"{step.energy_before - step.objective:.3e}",
        f"{step.distance_squared:.4e}",
        f"{step.energy:.10g}",
        f"{certificate.gradient_norm:.1e}",
        f"{certificate.plan_gap:.1e}",
        f"{certificate.optimality_gap:.1e}",
        badge(certificate.optimality, KINDS.get(certificate.optimality, "none")),
        f"{certificate.proven_tokens}/{certificate.total_tokens}",
        f"{step.stats.gradient_evaluations}",
        step.status.name.lower().replace("_", " "),
    )
