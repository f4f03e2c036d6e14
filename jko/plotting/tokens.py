r"""Tokens on the sphere, at several times.

d = 2: the circle, each curve on its own radius.  d = 3: the two hemispheres in Lambert's azimuthal
equal-area projection.  d >= 4: the first three principal coordinates of all tokens of all curves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import ArrayLike, NDArray

from ..measures import TokenCloud
from ..runs.curve import Curve
from .arguments import Shown, Still, as_shown
from .style import PALETTE, curve_color, curve_label, legend_above, new_figure, styled

__all__ = ["Principal", "common_times", "plot_tokens", "principal_coordinates"]

Array = NDArray[np.float64]

#: Radial distance between curves drawn on the same circle.
CIRCLE_SPACING = 0.13

#: Colours of token clouds on their own.
CLOUD_COLORS = ("blue", "vermilion", "green", "orange", "purple", "sky", "black", "grey")


@dataclass(frozen=True, kw_only=True, eq=False)
class Principal:
    """The first principal axes of a set of tokens.

    Attributes
    ----------
    axes : (3, d)
        Orthonormal.
    share : float
        Share of the mean squared length that they carry.
    """

    axes: Array
    share: float

    def __call__(self, points: Array) -> Array:
        """Coordinates of the points (..., d) along the axes, (..., 3)."""
        return points @ self.axes.T


def principal_coordinates(curves: Sequence[Shown]) -> Principal:
    """Principal axes (about the origin) of all tokens of all curves at all times."""
    points = np.concatenate([curve.points.reshape(-1, curve.points.shape[2]) for curve in curves])
    values, vectors = np.linalg.eigh(points.T @ points / points.shape[0])
    axes = vectors[:, ::-1][:, :3].T
    # a sign that does not depend on the linear algebra library
    axes = axes * np.sign(axes[np.arange(3), np.abs(axes).argmax(axis=1)])[:, None]
    return Principal(axes=axes, share=float(values[::-1][:3].sum() / values.sum()))


def common_times(curves: Sequence[Shown], count: int) -> Array:
    """``count`` equispaced times of the span that all curves cover; zero if there are only clouds."""
    spans = [curve.times for curve in curves if isinstance(curve, Curve)]
    start = max((times[0] for times in spans), default=0.0)
    end = min((times[-1] for times in spans), default=0.0)
    if end <= start:
        return np.array([start])
    return np.linspace(start, end, count)


@styled
def plot_tokens(
    curves: Curve | TokenCloud | Sequence[Curve | TokenCloud],
    times: ArrayLike | None = None,
    count: int = 4,
) -> Figure:
    """Tokens of several curves at the same times, one column a time.

    Parameters
    ----------
    curves : Curve, TokenCloud or sequence of them
        Of the same dimension d.  A token cloud is the same at all times.
    times : array_like, optional
        Times to show; by default ``count`` equispaced ones.
    count : int
        Number of columns if ``times`` is not given.

    Raises
    ------
    ValueError
        If there is no curve, or their dimensions differ.
    TypeError
        For anything but curves and clouds.
    """
    members = as_shown(curves)
    dims = {member.points.shape[2] for member in members}
    if len(dims) != 1:
        raise ValueError(f"curves must be one or more curves of one dimension, got d in {dims}")
    dim = dims.pop()
    shown = common_times(members, count) if times is None else np.atleast_1d(np.asarray(times))
    rows = 1 if dim == 2 else 2
    figure = new_figure(2.35 * shown.size + 0.5, 2.45 * rows + 0.6)
    axes = figure.subplots(rows, shown.size, squeeze=False)
    if dim == 2:
        _circles(axes, members, shown)
    elif dim == 3:
        _hemispheres(axes, members, shown)
    else:
        _principal(figure, axes, members, shown)
    moving = any(isinstance(member, Curve) for member in members)
    for column, t in enumerate(shown):
        axes[0, column].set_title(f"t = {t:.3g}" if moving or times is not None else "")
    if moving or len(members) > 1:
        legend_above(figure, axes[0, 0])
    return figure


def _scatter(ax: Axes, curve: Shown, points: Array, weights: Array) -> None:
    """Dots for movements and clouds, open squares for the gradient flow, crosses for the softmax flow.

    Areas follow the weights (relative to the mean weight of the whole cloud).
    """
    count = curve.points.shape[1]
    area = 14.0 * min(1.0, 6.0 / np.sqrt(count)) * np.clip(weights * count, 0.25, 4.0)
    x, y = points.T
    if isinstance(curve, Still):
        shade = PALETTE[CLOUD_COLORS[curve.number % len(CLOUD_COLORS)]]
        ax.scatter(x, y, s=area, color=shade, linewidths=0, label=curve.label)
        return
    color, label = curve_color(curve), curve_label(curve)
    if curve.kind == "movement":
        ax.scatter(x, y, s=area, color=color, linewidths=0, label=label)
    elif curve.scheme == "gradient":
        ax.scatter(
            x,
            y,
            s=2.6 * area,
            marker="s",
            facecolors="none",
            edgecolors=color,
            linewidths=0.8,
            label=label,
        )
    else:
        ax.scatter(x, y, s=1.5 * area, marker="x", color=color, linewidths=0.9, label=label)


def _bare(ax: Axes, radius: float = 1.0) -> None:
    ax.set_aspect("equal")
    ax.set_xlim(-1.04 * radius, 1.04 * radius)
    ax.set_ylim(-1.04 * radius, 1.04 * radius)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(False)
    for side in ax.spines.values():
        side.set_visible(False)


def _ring(ax: Axes, radius: float) -> None:
    ax.add_patch(Circle((0, 0), radius, facecolor="none", edgecolor="#BBBBBB", linewidth=0.8))


def _circles(axes: NDArray[np.object_], curves: Sequence[Shown], times: Array) -> None:
    outer = 1 + CIRCLE_SPACING * (len(curves) - 1)
    for column, t in enumerate(times):
        ax = axes[0, column]
        _bare(ax, outer)
        for level, curve in enumerate(curves):
            radius = 1 + CIRCLE_SPACING * level
            _ring(ax, radius)
            cloud = curve.at(float(t))
            _scatter(ax, curve, radius * cloud.points, cloud.weights)
        ax.set_xlabel("$x_1$ (a radius per curve)" if len(curves) > 1 else "$x_1$")
        if column == 0:
            ax.set_ylabel("$x_2$")


def lambert(points: Array) -> Array:
    """Equal-area projection of the hemisphere ``|x_3|``, both seen from the side of +x_3."""
    scale = np.sqrt(1 / (1 + np.abs(points[:, 2])))
    return points[:, :2] * scale[:, None]


def _graticule(ax: Axes) -> None:
    """Parallels at 30 and 60 degrees and meridians every 45."""
    for latitude in (0.0, 30.0, 60.0):
        z = np.sin(np.radians(latitude))
        radius = np.sqrt((1 - z**2) / (1 + z))
        width = 1.0 if latitude == 0 else 0.5
        edge = "#999999" if latitude == 0 else "#D5D5D5"
        ax.add_patch(Circle((0, 0), radius, facecolor="none", edgecolor=edge, linewidth=width))
    for angle in np.arange(4) * np.pi / 4:
        c, s = np.cos(angle), np.sin(angle)
        ax.plot([-c, c], [-s, s], color="#D5D5D5", linewidth=0.5, zorder=0)


def _hemispheres(axes: NDArray[np.object_], curves: Sequence[Shown], times: Array) -> None:
    for column, t in enumerate(times):
        for row in (0, 1):
            ax = axes[row, column]
            _bare(ax)
            _graticule(ax)
            for curve in curves:
                cloud = curve.at(float(t))
                side = cloud.points[:, 2] >= 0 if row == 0 else cloud.points[:, 2] < 0
                _scatter(ax, curve, lambert(cloud.points[side]), cloud.weights[side])
            if column == 0:
                ax.set_ylabel("$x_3 \\geq 0$" if row == 0 else "$x_3 < 0$ (seen through)")


def _principal(
    figure: Figure, axes: NDArray[np.object_], curves: Sequence[Shown], times: Array
) -> None:
    principal = principal_coordinates(curves)
    for column, t in enumerate(times):
        for row, pair in enumerate(((0, 1), (0, 2))):
            ax = axes[row, column]
            _bare(ax)
            _ring(ax, 1.0)
            for curve in curves:
                cloud = curve.at(float(t))
                _scatter(ax, curve, principal(cloud.points)[:, pair], cloud.weights)
            ax.set_xlabel(f"PC{pair[0] + 1}")
            if column == 0:
                ax.set_ylabel(f"PC{pair[1] + 1}")
    dim = curves[0].points.shape[2]
    figure.supxlabel(
        f"first 3 principal coordinates of {dim} ({principal.share:.0%} of the squared length)",
        fontsize=9.5,
    )
