"""Minimizing movements: one proximal step after the other."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import positive_number, time_span
from ..attention.fields import KernelOverflowError
from ..attention.model import AttentionModel
from ..measures import TokenCloud
from ..schemes import Past, make_scheme
from ..steps.proximal import TOLERANCE, StepOptions
from ..steps.result import StepError, StepRecord
from ..transport.plan import PlanError
from .curve import Curve, CurveStatus
from .monitors import Monitor, Snapshot, as_monitor

__all__ = ["minimizing_movement", "step_times"]

Array = NDArray[np.float64]


def step_times(start: float, end: float, step: float) -> Array:
    """Times ``start, start + step, ..., end``; the last step is shortened if need be."""
    count = int(np.ceil((end - start) / step - 1e-9))
    times = start + step * np.arange(count + 1)
    if count > 0:
        times[-1] = end
    return times


def minimizing_movement(
    model: AttentionModel,
    cloud: TokenCloud,
    t_span: tuple[float, float],
    step: float,
    scheme: str = "jko",
    *,
    cost: str = "source",
    solver: str = "particles",
    support: ArrayLike | None = None,
    tolerance: float = TOLERANCE,
    max_evaluations: int = 1000,
    certify: str = "full",
    monitor: Monitor | None = None,
) -> Curve:
    r"""The minimizing movement of the energy from ``cloud`` over ``t_span``.

    Parameters
    ----------
    model : AttentionModel
    cloud : TokenCloud
        Initial measure.
    t_span : (float, float)
        Start and end time.
    step : float
        Step :math:`\tau`; the last step is shortened if it does not divide the span.
    scheme : {"jko"}
        Time-stepping scheme.
    cost, solver, support, tolerance, max_evaluations, certify
        Passed to every `proximal_step`.
    monitor : Monitor, optional
        Watches the run.

    Returns
    -------
    Curve
        Holding what was done: a step that fails, or Ctrl-C, ends the run early with
        ``success`` false and the reason in ``message``.

    Raises
    ------
    ValueError, TypeError
        For invalid arguments, before any step.
    """
    start, end = time_span(t_span)
    stepper = make_scheme(scheme)
    options = StepOptions(
        cost=cost,
        solver=solver,
        support=support,
        tolerance=tolerance,
        max_evaluations=max_evaluations,
        certify=certify,
    )
    times = step_times(start, end, positive_number(step, "step"))
    watch = as_monitor(monitor)
    energy = model.energy(cloud, start)
    snapshots = [Snapshot(time=start, points=cloud.points, weights=cloud.weights, energy=energy)]
    watch.snapshot(snapshots[0])
    past = deque([Past(time=start, cloud=cloud)], maxlen=stepper.memory)
    status, detail = CurveStatus.COMPLETE, ""
    try:
        for stop in times[1:]:
            result = stepper.advance(model, tuple(past), float(stop), options)
            past.append(Past(time=float(stop), cloud=result.cloud))
            snapshots.append(
                Snapshot(
                    time=float(stop),
                    points=result.cloud.points,
                    weights=result.cloud.weights,
                    energy=result.energy,
                    record=result.record(),
                )
            )
            watch.snapshot(snapshots[-1])
            watch.progress(float(stop))
    except KeyboardInterrupt:
        status = CurveStatus.INTERRUPTED
    except (StepError, PlanError, KernelOverflowError) as problem:
        status, detail = CurveStatus.STEP_FAILED, str(problem)
    return _assemble(model, stepper.name, cost, snapshots, status, detail)


def _assemble(
    model: AttentionModel,
    scheme: str,
    cost: str,
    snapshots: list[Snapshot],
    status: CurveStatus,
    detail: str,
) -> Curve:
    steps = tuple(s.record for s in snapshots if s.record is not None)
    if status is CurveStatus.COMPLETE and not all(step.success for step in steps):
        status = CurveStatus.UNCONVERGED
        detail = _first_failure(steps)
    return Curve(
        model=model,
        kind="movement",
        scheme=scheme,
        times=np.array([s.time for s in snapshots]),
        points=np.array([s.points for s in snapshots]),
        weights=np.array([s.weights for s in snapshots]),
        energy=np.array([s.energy for s in snapshots]),
        steps=steps,
        evaluations=sum(s.stats.gradient_evaluations for s in steps),
        cost=cost,
        status=status,
        detail=detail,
    )


def _first_failure(steps: tuple[StepRecord, ...]) -> str:
    failed = [k for k, step in enumerate(steps) if not step.success]
    return f"step {failed[0]} ({steps[failed[0]].message}), {len(failed)} in all"
