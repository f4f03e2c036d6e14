"""Minimizing movements: one proximal step after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import positive_number, time_span
from ..attention.fields import KernelOverflowError
from ..attention.model import AttentionModel
from ..measures import TokenCloud, require_cloud
from ..schemes import JKO, Midpoint, Past, Scheme, make_scheme
from ..steps.grid import require_on_nodes
from ..steps.proximal import TOLERANCE, StepOptions
from ..steps.result import StepError, StepRecord, StepResult, StepStatus
from ..transport.plan import PlanError
from .adaptive import adaptive_steps
from .curve import Curve, CurveStatus
from .monitors import Monitor, Snapshot, as_monitor
from .paths import exact_cloud

__all__ = ["minimizing_movement", "step_times"]

Array = NDArray[np.float64]


def step_times(start: float, end: float, step: float) -> Array:
    """Times ``start, start + step, ..., end``; the last step is shortened if need be."""
    count = int(np.ceil((end - start) / step - 1e-9))
    times: Array = start + step * np.arange(count + 1, dtype=np.float64)
    if count > 0:
        times[-1] = end
    return times


def minimizing_movement(
    model: AttentionModel,
    cloud: TokenCloud,
    t_span: tuple[float, float],
    step: float | None = None,
    scheme: str | Scheme = "jko",
    *,
    rtol: float | None = None,
    cost: str = "source",
    solver: str = "particles",
    support: ArrayLike | None = None,
    tolerance: float = TOLERANCE,
    max_evaluations: int = 1000,
    certify: str = "full",
    earlier: Sequence[Snapshot] = (),
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
    step : float, optional
        Step :math:`\tau`; the last step is shortened if it does not divide the span.  None: steps are
        chosen so that ``rtol`` holds, see `jko.runs.adaptive`.
    scheme : {"jko", "midpoint", "bdf2", "ve2", "richardson-jko", "richardson-midpoint"} or Scheme
        Time-stepping scheme, with options such as ``"midpoint,mobility=old"``.  Adaptive runs
        compare JKO with midpoint and keep midpoint, whichever of the two is named.
    rtol : float, optional
        Error per step of an adaptive run, in radians.
    cost, solver, support, tolerance, max_evaluations, certify
        Passed to every `proximal_step`.
    earlier : sequence of Snapshot
        All states of an interrupted run with the same arguments, which is continued on its own
        time grid as if it had never stopped; ``cloud`` is then not used.  (An adaptive run goes
        on with its last step, but its controller starts anew.)  See `jko.runs.resume`.
    monitor : Monitor, optional
        Watches the run.

    Returns
    -------
    Curve
        Holding what was done: a step that fails, a plan that splits mass where the scheme
        needs labels, or Ctrl-C, ends the run early with ``success`` false and the reason in
        ``message``.

    Raises
    ------
    ValueError, TypeError
        For invalid arguments, before any step.
    """
    require_cloud(cloud)
    start, end = time_span(t_span)
    stepper = _stepper(scheme, step, rtol)
    options = StepOptions(
        cost=cost,
        solver=solver,
        support=support,
        tolerance=tolerance,
        max_evaluations=max_evaluations,
        certify=certify,
    )
    if solver != "particles":
        require_on_nodes(cloud, support)
    model.heads(end)  # a path that ends before the span does is an error before any work
    watch = as_monitor(monitor)
    snapshots = list(earlier) or [_initial(model, cloud, start)]
    if step is None:
        pieces = _adaptive_steps(model, snapshots[-1], end, float(rtol or 0), options)
    else:
        times = step_times(start, end, step)
        pieces = _fixed_steps(model, stepper, snapshots, times, options)
    status, detail = CurveStatus.COMPLETE, ""
    try:
        if not earlier:
            watch.snapshot(snapshots[0])
        for stop, result in pieces:
            snapshots.append(_snapshot(model, stop, result))
            watch.snapshot(snapshots[-1])
            watch.progress(stop)
    except KeyboardInterrupt:
        status = CurveStatus.INTERRUPTED
    except (StepError, PlanError, KernelOverflowError) as problem:
        status, detail = CurveStatus.STEP_FAILED, str(problem)
    return _assemble(model, stepper.name, cost, snapshots, status, detail)


def _stepper(scheme: str | Scheme, step: float | None, rtol: float | None) -> Scheme:
    """The scheme of the run, once its step or its tolerance is checked."""
    stepper = make_scheme(scheme)
    if step is not None:
        positive_number(step, "step")
        if rtol is not None:
            raise ValueError(f"rtol must be None when step is given, got {rtol}")
        return stepper
    if rtol is None:
        raise ValueError("one of step and rtol must be given, both are None")
    positive_number(rtol, "rtol")
    if stepper not in (JKO(), Midpoint()):
        raise ValueError(
            "scheme must be 'jko' or 'midpoint' for step=None, whose steps compare these two, "
            f"got {stepper.name!r}"
        )
    return Midpoint()


def _fixed_steps(
    model: AttentionModel,
    stepper: Scheme,
    snapshots: list[Snapshot],
    times: Array,
    options: StepOptions,
) -> Iterator[tuple[float, StepResult]]:
    past = deque(map(_past, snapshots[-stepper.memory :]), maxlen=stepper.memory)
    for stop in map(float, times[times > snapshots[-1].time]):
        result = stepper.advance(model, tuple(past), stop, options)
        if result.status is StepStatus.PLAN_SPLITS:
            raise StepError(f"at t = {past[-1].time:g}: {result.message}; try smaller steps")
        past.append(Past(time=stop, cloud=result.cloud))
        yield stop, result


def _adaptive_steps(
    model: AttentionModel, last: Snapshot, end: float, rtol: float, options: StepOptions
) -> Iterator[tuple[float, StepResult]]:
    # the record of a midpoint step holds half of its length
    step = None if last.record is None else 2 * last.record.step
    return adaptive_steps(model, _past(last), end, rtol, options, step)


def _initial(model: AttentionModel, cloud: TokenCloud, start: float) -> Snapshot:
    energy = model.energy(cloud, start)
    return Snapshot(time=start, points=cloud.points, weights=cloud.weights, energy=energy)


def _snapshot(model: AttentionModel, stop: float, result: StepResult) -> Snapshot:
    cloud = result.cloud
    energy = result.energy if result.energy_time == stop else model.energy(cloud, stop)
    return Snapshot(
        time=stop,
        points=cloud.points,
        weights=cloud.weights,
        energy=energy,
        record=result.record(),
    )


def _past(snapshot: Snapshot) -> Past:
    return Past(time=snapshot.time, cloud=exact_cloud(snapshot.points, snapshot.weights))


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
