"""Reference states for convergence studies, with their own error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._validation import choice
from ..attention.model import VELOCITIES, AttentionModel
from ..attention.weights import WeightPath
from ..measures import TokenCloud
from ..runs.curve import Curve
from ..runs.flow import particle_flow
from ..transport.distance import labelled_distance
from .convergence_table import Gap

__all__ = ["Reference", "StudyError", "grid_spacing", "is_rough", "reference_states"]

Array = NDArray[np.float64]

#: Tolerance of the direct flow, and of the looser one that measures its error.
REFERENCE_RTOL = 1e-12
LOOSER_RTOL = 1e-11

#: Error to reach on a weight path with a grid of kinks, and into how many parts at most its
#: grid is divided for that.  Steps longer than the grid make errors of 1e-3 and more: there the
#: looser one is enough, and the reference is not what the study spends its time on.
GRID_ERROR = 1e-10
ROUGH_GRID_ERROR = 1e-6
GRID_PARTS = 8


class StudyError(RuntimeError):
    """No member, or not the reference, of a study reached the end of the time span.

    Attributes
    ----------
    gaps : tuple of Gap
        The members that did not.
    """

    def __init__(self, message: str, gaps: tuple[Gap, ...] = ()) -> None:
        super().__init__(message)
        self.gaps = gaps


@dataclass(frozen=True, kw_only=True, eq=False)
class Reference:
    r"""What errors are measured against: :math:`\mu_{t_k}` at the common times.

    Attributes
    ----------
    label : str
    points : (T, n, d)
        Tokens at the common times.
    error : float or None
        Estimate of their own error in radians, None if nothing is known of it.
    """

    label: str
    points: Array
    error: float | None


def reference_states(
    model: AttentionModel,
    cloud: TokenCloud,
    span: tuple[float, float],
    times: Array,
    reference: str | Curve,
    smallest_step: float = 0.0,
) -> Reference:
    r"""States :math:`\mu_{t_k}` of the direct flow or of a given curve at ``times``.

    ``smallest_step`` is that of the study: above the grid of the weight path's kinks no precise
    reference is needed.

    Raises
    ------
    ValueError
        If the curve has other tokens or does not cover the times.
    StudyError
        If the flow ends early.
    """
    if isinstance(reference, Curve):
        return _states_of_curve(reference, cloud, times)
    choice(reference, "reference", (*VELOCITIES, "fine"))
    spacing = grid_spacing(model.path, span)
    if spacing is None:
        settings = [{"rtol": REFERENCE_RTOL}, {"rtol": LOOSER_RTOL}]
        fine, coarse = (_flow(model, cloud, span, times, reference, **s) for s in settings)
        error = _largest_distance(fine, coarse, cloud.weights)
    else:
        wanted = ROUGH_GRID_ERROR if smallest_step > spacing else GRID_ERROR
        fine, error = _refined_flow(model, cloud, span, times, reference, spacing, wanted)
    return Reference(label=f"{reference} flow", points=fine, error=error)


def _refined_flow(
    model: AttentionModel,
    cloud: TokenCloud,
    span: tuple[float, float],
    times: Array,
    velocity: str,
    spacing: float,
    wanted: float,
) -> tuple[Array, float]:
    """Fourth-order steps on the path's own grid, divided until their error is small."""
    fine = _flow(model, cloud, span, times, velocity, method="rk4", step=spacing)
    error, parts = np.inf, 1
    while error > wanted and parts < GRID_PARTS:
        coarse, parts = fine, 2 * parts
        fine = _flow(model, cloud, span, times, velocity, method="rk4", step=spacing / parts)
        error = _largest_distance(fine, coarse, cloud.weights) / 15
    return fine, error


def _largest_distance(first: Array, second: Array, weights: Array) -> float:
    return max(labelled_distance(x, y, weights) for x, y in zip(first, second, strict=True))


def grid_spacing(path: WeightPath, span: tuple[float, float]) -> float | None:
    r"""Spacing :math:`h` of the path's kinks :math:`t_0 + kh` if they divide the span evenly, else None."""
    start, end = span
    kinks = path.breakpoints(start, end)
    if kinks.size == 0:
        return None
    gaps = np.diff([start, *kinks, end])
    regular = np.ptp(gaps) <= 1e-6 * gaps.max()
    return float(gaps.mean()) if regular else None


def is_rough(path: WeightPath, span: tuple[float, float], smallest_step: float) -> str | None:
    r"""A sentence, where even the smallest step :math:`\tau > h` of a study is longer than the path's grid, else None."""
    spacing = grid_spacing(path, span)
    if spacing is None or smallest_step <= spacing:
        return None
    return (
        f"the weight path has kinks every {spacing:g}, the smallest step is {smallest_step:g}: on "
        "such steps the path is rough, and the order is not that of the scheme"
    )


def _flow(
    model: AttentionModel,
    cloud: TokenCloud,
    span: tuple[float, float],
    times: Array,
    velocity: str,
    **settings: object,
) -> Array:
    curve = particle_flow(
        model,
        cloud,
        span,
        velocity,
        t_eval=times,
        **settings,  # type: ignore[arg-type]
    )
    if not curve.success:
        raise StudyError(f"the reference flow ended early: {curve.message}")
    return curve.points


def _states_of_curve(curve: Curve, cloud: TokenCloud, times: Array) -> Reference:
    if curve.points.shape[1:] != cloud.points.shape:
        raise ValueError(
            f"reference must have tokens of shape {cloud.points.shape} like cloud, "
            f"got {curve.points.shape[1:]}"
        )
    points = np.array([curve.at(float(t)).points for t in times])
    return Reference(label=f"the given {curve.scheme} {curve.kind}", points=points, error=None)
