r"""Step-size convergence: errors, observed orders and work of a scheme against a reference.

The members of a study run on the same weight path and are compared at times that all of
their grids share, so that no interpolation enters.  What else could enter, the error of the
reference and the inner tolerance of the steps, is estimated, and said where it matters.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import finite_array, time_span
from ..attention.model import AttentionModel
from ..measures import TokenCloud
from ..runs.curve import Curve, CurveStatus
from ..runs.movement import minimizing_movement, step_times
from ..schemes import Scheme, make_scheme
from ..steps.proximal import TOLERANCE, StepOptions
from ..transport.distance import labelled_distance, wasserstein
from .convergence_table import ROUNDING, ConvergenceTable, Gap
from .reference import Reference, StudyError, grid_spacing, is_rough, reference_states

__all__ = [
    "ConvergenceTable",
    "StudyError",
    "convergence_study",
]

Array = NDArray[np.float64]

#: Times at which the members of a study are compared, at most.
COMPARED = 20

#: A relative error eps of the smallest measured error shifts the last pairwise order by
#: eps / ln 2: three percent are worth 0.04.
POLLUTION = 0.03


@dataclass(frozen=True, kw_only=True, eq=False)
class _Task:
    """What a member needs: it travels to wherever the executor runs it."""

    model: AttentionModel
    cloud: TokenCloud
    t_span: tuple[float, float]
    step: float
    scheme: Scheme
    times: Array
    options: StepOptions


@dataclass(frozen=True, kw_only=True, eq=False)
class _Member:
    """What comes back: states at the common times, work, and the size of the inner error."""

    step: float
    points: Array
    evaluations: int
    seconds: float
    inner_error: float
    message: str


def convergence_study(
    model: AttentionModel,
    cloud: TokenCloud,
    t_span: tuple[float, float],
    steps: ArrayLike,
    scheme: str | Scheme = "jko",
    reference: str | Curve | Reference = "gradient",
    *,
    cost: str = "source",
    tolerance: float = TOLERANCE,
    max_evaluations: int = 1000,
    certify: str = "local",
    fine_factor: int = 16,
    executor: Executor | None = None,
    progress: Callable[[float], None] | None = None,
) -> ConvergenceTable:
    r"""Run a scheme with several steps and measure its errors and its order.

    The error of a step is :math:`\max_k W_2(\mu^\tau_{t_k}, \mu_{t_k})` over the times that all steps
    share, :math:`\mu` being the reference; the order is the slope of its logarithm over that of
    :math:`\tau`.

    Parameters
    ----------
    model : AttentionModel
    cloud : TokenCloud
        Initial measure.
    t_span : (float, float)
        Start and end time.
    steps : (K,) array_like
        At least two different steps, in any order.
    scheme : str or Scheme
        As for `minimizing_movement`.
    reference : {"gradient", "softmax", "fine"} or Curve
        ``"gradient"``, ``"softmax"``: the direct flow, at a tolerance of 1e-12; on a weight path with
        a regular grid of kinks by fixed steps that divide the grid.  ``"fine"``: the same scheme with
        a step ``fine_factor`` times smaller than the smallest.  A curve: its states.  What
        `jko.diagnostics.reference.reference_states` returned for `common_times`: studies of several
        schemes with the same steps can share it.
    cost, tolerance, max_evaluations, certify
        Passed to every step.
    fine_factor : int
        See ``reference``.
    executor : concurrent.futures.Executor, optional
        Runs the members; any executor will do.
    progress : callable, optional
        Called with the step of every run that has ended; the smallest step comes first.

    Returns
    -------
    ConvergenceTable
        Of the steps whose runs reached the end; the others are its ``gaps``.

    Raises
    ------
    ValueError, TypeError
        For invalid arguments, before any work.
    StudyError
        If no member, or not the reference, reaches the end; the message says why.
    """
    span = time_span(t_span)
    stepper = make_scheme(scheme)
    sizes = _checked_steps(steps)
    times = common_times(span, sizes)
    options = StepOptions(
        cost=cost, tolerance=tolerance, max_evaluations=max_evaluations, certify=certify
    )

    def task(step: float) -> _Task:
        return _Task(
            model=model,
            cloud=cloud,
            t_span=span,
            step=step,
            scheme=stepper,
            times=times,
            options=options,
        )

    run = map if executor is None else executor.map
    all_sizes = sizes.tolist()
    fine = isinstance(reference, str) and reference == "fine"
    if fine:
        all_sizes.append(float(sizes[-1]) / fine_factor)
    found: list[_Member | Gap] = []
    # the longest runs first, so that no worker waits for one of them at the end
    for member in run(_run_member, [task(step) for step in all_sizes[::-1]]):
        found.append(member)
        if progress is not None:
            progress(member.step)
    states: Reference
    if fine:
        states = _fine_reference(stepper, found.pop(0))
    members = [member for member in found[::-1] if isinstance(member, _Member)]
    gaps = tuple(member for member in found[::-1] if isinstance(member, Gap))
    if not members:
        told = "; ".join(f"step {gap.step:g} ended early: {gap.reason}" for gap in gaps)
        raise StudyError(f"no run of {stepper.name} reached the end: {told}", gaps)
    if isinstance(reference, Reference):
        states = _required(reference, times, cloud)
    elif not fine:
        states = reference_states(model, cloud, span, times, reference, float(sizes[-1]))
    return _table(model, cloud.weights, stepper, members, gaps, states, span, fine_factor)


def _fine_reference(scheme: Scheme, member: _Member | Gap) -> Reference:
    label = f"{scheme.name} at step {member.step:g}"
    if isinstance(member, Gap):
        raise StudyError(f"the reference, {label}, ended early: {member.reason}", (member,))
    return Reference(label=label, points=member.points, error=None)


def _required(reference: Reference, times: Array, cloud: TokenCloud) -> Reference:
    wanted = (times.size, *cloud.points.shape)
    if reference.points.shape != wanted:
        raise ValueError(
            f"reference must hold states of shape {wanted}, got {reference.points.shape}"
        )
    return reference


def _checked_steps(steps: ArrayLike) -> Array:
    """Decreasing steps, at least two."""
    sizes = finite_array(steps, "steps", 1)
    if (sizes <= 0).any():
        raise ValueError(f"steps must be positive, got {sizes.min()}")
    unique = np.unique(sizes)[::-1]
    if unique.size < 2 or unique.size < sizes.size:
        raise ValueError(f"steps must be at least two different numbers, got {sizes.tolist()}")
    return unique


def common_times(span: tuple[float, float], steps: Array) -> Array:
    """Times on the grids of all steps, at most `COMPARED` of them, the last one included.

    Raises
    ------
    ValueError
        If the span is empty.
    """
    start, end = span
    if end == start:
        raise ValueError(f"t_span must not be empty, got {span}")
    common = step_times(start, end, float(steps[0]))[1:]
    for step in steps[1:]:
        grid = step_times(start, end, float(step))
        distance = np.abs(common - grid[_nearest(grid, common)])
        common = common[distance <= 1e-9 * max(1.0, abs(start), abs(end))]
    if common.size > COMPARED:
        common = common[np.linspace(0, common.size - 1, COMPARED).round().astype(int)]
    return common


def _nearest(grid: Array, times: Array) -> NDArray[np.intp]:
    right = np.clip(np.searchsorted(grid, times), 1, grid.size - 1)
    return np.where(times - grid[right - 1] < grid[right] - times, right - 1, right)


def _run_member(task: _Task) -> _Member | Gap:
    begin = clock.perf_counter()
    curve = minimizing_movement(
        task.model, task.cloud, task.t_span, task.step, task.scheme, **vars(task.options)
    )
    seconds = clock.perf_counter() - begin
    if curve.status not in (CurveStatus.COMPLETE, CurveStatus.UNCONVERGED):
        return Gap(step=task.step, reason=curve.detail or curve.message)
    return _Member(
        step=task.step,
        points=curve.points[_nearest(curve.times, task.times)],
        evaluations=curve.evaluations,
        seconds=seconds,
        inner_error=_inner_error(curve, task.options.tolerance),
        message="" if curve.success else f"step {task.step:g}: {curve.message}",
    )


def _inner_error(curve: Curve, tolerance: float) -> float:
    """Bound of what inexact steps add up to: relative residuals times the lengths of the steps.

    A step whose gradient is ``eps`` times that at its start misses its end by about ``eps``
    times its length; the mobility of an implicit step is exact to the tolerance.
    """
    lengths = [
        labelled_distance(x, y, curve.weights[0])
        for x, y in zip(curve.points[:-1], curve.points[1:], strict=True)
    ]
    residuals = [step.certificate.gradient_norm + tolerance for step in curve.steps]
    return float(np.dot(residuals, lengths))


def _table(
    model: AttentionModel,
    weights: Array,
    scheme: Scheme,
    members: list[_Member],
    gaps: tuple[Gap, ...],
    reference: Reference,
    span: tuple[float, float],
    fine_factor: int,
) -> ConvergenceTable:
    pairs = [list(zip(member.points, reference.points, strict=True)) for member in members]
    distances = np.array(
        [
            [wasserstein(TokenCloud(x, weights), TokenCloud(y, weights)) for x, y in member]
            for member in pairs
        ]
    )
    labelled = [max(labelled_distance(x, y, weights) for x, y in member) for member in pairs]
    table = ConvergenceTable(
        scheme=scheme.name,
        reference=reference.label,
        expected_order=scheme.order,
        steps=np.array([member.step for member in members]),
        errors=distances.max(axis=1),
        final_errors=distances[:, -1],
        labelled_errors=np.array(labelled),
        evaluations=np.array([member.evaluations for member in members], dtype=float),
        seconds=np.array([member.seconds for member in members]),
        gaps=gaps,
        kink_spacing=grid_spacing(model.path, span),
    )
    messages = _messages(table, model, members, reference, span, fine_factor)
    return ConvergenceTable(**{**vars(table), "messages": messages})


def _messages(
    table: ConvergenceTable,
    model: AttentionModel,
    members: list[_Member],
    reference: Reference,
    span: tuple[float, float],
    fine_factor: int,
) -> tuple[str, ...]:
    """Everything that makes the orders less than what they seem."""
    found = [f"step {gap.step:g} has no error, its run ended early: {gap.reason}" for gap in table.gaps]
    found += [member.message for member in members if member.message]
    smallest = float(table.errors[-1])
    error = reference.error
    if error is None and table.reference.startswith(table.scheme + " at step"):
        # the reference of order p is off by its share of the finest error
        share = fine_factor ** -float(table.expected_order)
        error = smallest * share / (1 - share)
    if error is not None and error > POLLUTION * smallest:
        found.append(
            f"the reference pollutes the table: its own error is about {error:.2g}, the smallest "
            f"error measured {smallest:.2g}"
        )
    for member, step, size in zip(members, table.steps, table.errors, strict=True):
        if member.inner_error > POLLUTION * size:
            found.append(
                f"the inner tolerance pollutes step {step:g}: inexact steps may add up to "
                f"{member.inner_error:.2g}, the error measured is {size:.2g}; lower tolerance"
            )
    last = float(table.pairwise_orders[-1]) if table.steps.size > 1 else np.inf
    rough = is_rough(model.path, span, float(table.steps[-1]))
    if rough is not None:
        found.append(rough)
    elif smallest > ROUNDING and last < 0.5 * table.expected_order:
        found.append(_levelled_off(table, last))
    return tuple(found)


def _levelled_off(table: ConvergenceTable, last: float) -> str:
    text = (
        f"the errors fall with order {last:.2f} between the last two steps, where order "
        f"{table.expected_order} is expected"
    )
    if table.reference == "softmax flow":
        return (
            text + ": for several heads minimizing movements converge to the gradient flow, and "
            "their distance to the softmax flow tends to that between the two flows"
        )
    return text
