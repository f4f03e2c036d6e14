"""Figures of studies: Taylor remainders, convergence, certificates, bounds, residuals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator
from numpy.typing import ArrayLike, NDArray

from ..steps.result import StepRecord
from .curves import FLOOR, OPTIMALITY_COLORS
from .style import PALETTE, legend_above, new_figure, slope_triangle, styled

__all__ = [
    "plot_bounds",
    "plot_convergence",
    "plot_head_counts",
    "plot_optimality",
    "plot_residuals",
    "plot_shares",
    "plot_taylor",
]

Array = NDArray[np.float64]

SERIES = (
    ("blue", "o"),
    ("vermilion", "s"),
    ("green", "^"),
    ("purple", "D"),
    ("orange", "v"),
    ("sky", "P"),
)


@styled
def plot_taylor(sizes: ArrayLike, remainders: Mapping[str, ArrayLike]) -> Figure:
    r"""Taylor remainders of the energy, log-log: slope 2 where the gradient is right.

    .. math:: |E(\exp_x(\epsilon u)) - E(x) - \epsilon \langle \nabla E, u\rangle|

    Parameters
    ----------
    sizes : (m,) array_like
        Sizes of the moves.
    remainders : mapping of str to (m,) array_like
    """
    figure = new_figure()
    ax = figure.subplots()
    sizes = np.asarray(sizes, dtype=float)
    low = np.inf
    for (name, values), (color, marker) in zip(remainders.items(), SERIES, strict=False):
        values = np.asarray(values, dtype=float)
        low = min(low, values.min())
        ax.loglog(sizes, values, marker + "-", color=PALETTE[color], linewidth=1, label=name)
    order = np.argsort(sizes)
    middle = float(sizes[order][sizes.size // 3])
    lowest = min(
        float(np.interp(np.log(middle), np.log(sizes[order]), np.log(np.asarray(v, float)[order])))
        for v in remainders.values()
    )
    slope_triangle(ax, middle, 0.12 * float(np.exp(lowest)), 2, 3.0)
    ax.set_xlabel(r"size $\epsilon$ of the move [rad]")
    ax.set_ylabel("Taylor remainder of E")
    legend_above(figure, ax, 3)
    return figure


def _limit_line(ax: Axes, limit: float, limits: Collection[float], color: str) -> None:
    """A labelled horizontal line; labels of neighbours move apart."""
    below = any(limit < other < 1.4 * limit for other in limits)
    above = any(other < limit < 1.4 * other for other in limits)
    ax.axhline(limit, linestyle="--", linewidth=1, color=color)
    ax.annotate(
        f"{limit:.4f}",
        (1, limit),
        (3, 5 * (above - below)),
        va="center",
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        fontsize=9,
        color=color,
    )


@styled
def plot_convergence(
    steps: ArrayLike,
    errors: Mapping[str, ArrayLike],
    limits: Mapping[str, float] | None = None,
    order: float = 1.0,
) -> Figure:
    r"""Distances at the final time as the step shrinks, log-log.

    Parameters
    ----------
    steps : (m,) array_like
    errors : mapping of str to (m,) array_like
        Distances in radians, one series a label.
    limits : mapping of str to float, optional
        Horizontal lines (limits that are not zero), keyed by the series they belong to.
    order : float
        Slope of the triangle.
    """
    figure = new_figure(7.2, 4.2)
    ax = figure.subplots()
    steps = np.asarray(steps, dtype=float)
    limits = limits or {}
    for (name, values), (color, marker) in zip(errors.items(), SERIES, strict=False):
        ax.loglog(steps, values, marker + "-", color=PALETTE[color], label=name)
        if name in limits:
            _limit_line(ax, limits[name], limits.values(), PALETTE[color])
    falling = [np.asarray(v, float) for name, v in errors.items() if name not in limits]
    if falling:
        k = np.argsort(steps)
        x = float(steps[k][min(1, steps.size - 1)])
        y = min(float(v[k][min(1, steps.size - 1)]) for v in falling)
        slope_triangle(ax, x, 0.42 * y, order)
        ax.set_ylim(bottom=0.3 * min(float(v.min()) for v in falling))
    ax.xaxis.set_major_locator(FixedLocator(list(steps)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(r"step $\tau$ [time]")
    ax.set_ylabel("distance $W_2$ at the final time [rad]")
    legend_above(figure, ax, 2)
    return figure


@styled
def plot_optimality(groups: Mapping[str, Sequence[StepRecord]]) -> Figure:
    """Certificates of several runs: how many steps are proven, searched, failed."""
    figure = new_figure(7.2, 0.34 * len(groups) + 1.3)
    ax = figure.subplots()
    names = list(groups)
    left = np.zeros(len(names))
    for kind, color in OPTIMALITY_COLORS.items():
        counts = np.array(
            [Counter(step.certificate.optimality for step in groups[name])[kind] for name in names]
        )
        if counts.any():
            bars = ax.barh(names, counts, left=left, color=color, label=kind)
            texts = [str(count) if count else "" for count in counts]
            ax.bar_label(bars, texts, label_type="center", color="white", fontsize=9)
            left = left + counts
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("number of steps")
    ax.set_ylabel("case and step")
    legend_above(figure, ax)
    return figure


@styled
def plot_residuals(residuals: Mapping[str, float], tolerance: float, label: str) -> Figure:
    """Residuals of identities on a log axis against the tolerance they must meet."""
    figure = new_figure(7.2, 0.34 * len(residuals) + 1.3)
    ax = figure.subplots()
    names = list(residuals)
    values = np.maximum(np.abs([residuals[name] for name in names]), FLOOR)
    ax.hlines(names, FLOOR / 3, values, color=PALETTE["blue"], linewidth=1.2)
    ax.plot(values, names, "o", color=PALETTE["blue"])
    for name, value in zip(names, values, strict=True):
        ax.annotate(
            f"{value:.0e}",
            (value, name),
            (7, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    ax.axvline(tolerance, linestyle="--", color=PALETTE["vermilion"], label="tolerance")
    ax.set_xscale("log")
    ax.set_xlim(FLOOR / 3, 10 * max(tolerance, values.max()))
    ax.invert_yaxis()
    ax.margins(y=0.15)
    ax.grid(False, axis="y")
    ax.set_xlabel(label)
    ax.set_ylabel("case and step")
    legend_above(figure, ax)
    return figure


@styled
def plot_bounds(
    lower: ArrayLike, values: Mapping[str, ArrayLike], upper: ArrayLike, label: str
) -> Figure:
    """Measured values between the bounds that hold for each of them (log axis).

    Parameters
    ----------
    lower, upper : (m,) array_like
    values : mapping of str to (m,) array_like
    label : str
        What is bounded.
    """
    figure = new_figure(7.2, 3.8)
    ax = figure.subplots()
    lower, upper = np.asarray(lower, float), np.asarray(upper, float)
    first = np.asarray(next(iter(values.values())), float)
    order = np.argsort(first)
    index = np.arange(lower.size)
    ax.vlines(index, lower[order], upper[order], color="#BBBBBB", linewidth=5, label="bounds")
    for (name, series), (color, marker) in zip(values.items(), SERIES, strict=False):
        ax.plot(index, np.asarray(series, float)[order], marker, color=PALETTE[color], label=name)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_locator(LogLocator(subs=(0.2, 0.5)))
    ax.yaxis.set_minor_formatter("{x:g}")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(False, axis="x")
    ax.set_xlabel("pair of clouds, by increasing ratio")
    ax.set_ylabel(label)
    legend_above(figure, ax)
    return figure


@styled
def plot_shares(shares: Mapping[str, ArrayLike], label: str, group: str) -> Figure:
    """Shares by group: the median as a bar, every draw as a dot.

    Parameters
    ----------
    shares : mapping of str to array_like
        Draws of every group, as fractions.
    label, group : str
        What is shared, and what the groups are.
    """
    figure = new_figure(7.2, 3.6)
    ax = figure.subplots()
    draws = {name: 100 * np.atleast_1d(np.asarray(v, float)) for name, v in shares.items()}
    medians = [float(np.median(values)) for values in draws.values()]
    names = [f"{name}\nmedian {abs(m):.0f} %" for name, m in zip(draws, medians, strict=True)]
    ax.bar(names, medians, 0.6, color=PALETTE["vermilion"], alpha=0.6, label="median")
    for index, values in enumerate(draws.values()):
        spread = index + 0.22 * np.linspace(-1, 1, values.size) if values.size > 1 else [index]
        ax.plot(spread, values, "o", color="black", markersize=4, label="one draw")
    ax.grid(False, axis="x")
    ax.margins(y=0.12)
    ax.set_ylabel(label)
    ax.set_xlabel(group)
    legend_above(figure, ax)
    return figure


@styled
def plot_head_counts(
    counts: ArrayLike, samples: Mapping[str, ArrayLike], label: str, reference: float | None = None
) -> Figure:
    """Positive quantities against the number of heads, log-log: means, with the range as bars.

    Parameters
    ----------
    counts : (m,) array_like
        Numbers of heads.
    samples : mapping of str to (k, m) array_like
        Draws of every quantity (one row each), by its name.
    label : str
        What is averaged.
    reference : float, optional
        Exponent of a dashed line through the first mean of the first quantity.
    """
    figure = new_figure(7.2, 4.2)
    ax = figure.subplots()
    counts = np.asarray(counts, dtype=float)
    lowest, highest = np.inf, 0.0
    for (name, values), (color, marker) in zip(samples.items(), SERIES, strict=False):
        rows = np.maximum(np.atleast_2d(np.asarray(values, dtype=float)), FLOOR)
        mean = rows.mean(axis=0)
        lowest, highest = min(lowest, rows.min()), max(highest, rows.max())
        bars = None if rows.shape[0] == 1 else [mean - rows.min(axis=0), rows.max(axis=0) - mean]
        ax.errorbar(
            counts, mean, bars, fmt=marker + "-", color=PALETTE[color], capsize=2, label=name
        )
    if reference is not None:
        first = float(np.atleast_2d(np.asarray(next(iter(samples.values())), float))[:, 0].mean())
        line = first * (counts / counts[0]) ** reference
        ax.plot(counts, line, "--", color="#444444", linewidth=1, label=f"slope {reference:g}")
    ax.set_xscale("log")
    ax.set_yscale("log")
    if highest < 1000 * lowest:
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_locator(FixedLocator(list(counts)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("number of heads H")
    ax.set_ylabel(label)
    legend_above(figure, ax, 2)
    return figure
