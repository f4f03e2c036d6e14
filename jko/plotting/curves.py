"""Figures over time: energy, its balance, distances, slopes, the defect, certificates."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from ..attention.model import AttentionModel
from ..diagnostics.balance import EnergyBalance
from ..measures import TokenCloud
from ..runs.curve import Curve
from .arguments import Curves, as_curves, require_curve
from .style import (
    PALETTE,
    curve_color,
    curve_label,
    legend_above,
    line_style,
    new_figure,
    styled,
)

__all__ = [
    "defect_over_time",
    "plot_balance",
    "plot_certificates",
    "plot_defect",
    "plot_dissipation",
    "plot_distances",
    "plot_energy",
    "plot_slopes",
]

Array = NDArray[np.float64]

TIME = "time t"

#: Values below this are drawn at it on logarithmic axes: they are rounding, or zero.
FLOOR = 1e-18

#: Quantities that need the kernel are sampled at so many times, fewer for large clouds: all
#: samples of a curve together spend about this many exponentials.
SAMPLES = 80
EXPONENTIALS = 2e10

OPTIMALITY_COLORS = {
    "proven": PALETTE["green"],
    "searched": PALETTE["sky"],
    "unchecked": PALETTE["grey"],
    "failed": PALETTE["vermilion"],
}


#: Terms of an energy balance in the order they are stacked: sign, legend.
BALANCE_TERMS = {
    "energy_time_derivative": (1, "work of the heads"),
    "dissipation": (-1, r"$-\frac{1}{2}\int$ speed$^2$"),
    "slope": (-1, r"$-\frac{1}{2}\int$ slope$^2$"),
    "defect": (1, "defect"),
}
STACK_COLORS = ("orange", "sky", "blue", "vermilion")


@styled
def plot_energy(curves: Curves) -> Figure:
    """Energy ``E(mu_t, t)`` of one curve or several."""
    curves = as_curves(curves)
    figure = new_figure()
    ax = figure.subplots()
    for curve in curves:
        ax.plot(
            curve.times,
            curve.energy,
            line_style(curve),
            color=curve_color(curve),
            label=curve_label(curve),
        )
    ax.set_xlabel(TIME)
    ax.set_ylabel(r"energy $E(\mu_t, t)$")
    legend_above(figure, ax)
    return figure


@styled
def plot_dissipation(curve: Curve) -> Figure:
    r"""Where the energy of a minimizing movement goes, from the records of its steps alone.

    .. math::

        E(\mu_{k+1}, t_{k+1}) - E(\mu_k, t_k) = [E(\mu_k, t_{k+1}) - E(\mu_k, t_k)]
        - \frac{W^2}{2\tau} - [E(\mu_k, t_{k+1}) - \Phi].

    The last bracket, the descent of the objective, equals the De Giorgi integral
    :math:`\int_0^\tau W^2/(2r^2)\,dr \ge 0` of the slope; `jko.energy_balance` checks that.

    Raises
    ------
    ValueError
        If the curve has no steps.
    """
    if not require_curve(curve).steps:
        raise ValueError("curve must be a minimizing movement with at least one step")
    before = np.array([step.energy_before for step in curve.steps])
    transport = np.array([step.distance_squared / (2 * step.step) for step in curve.steps])
    descent = before - np.array([step.objective for step in curve.steps])
    terms = {
        "work of the heads": before - curve.energy[:-1],
        r"$-W^2/2\tau$": -transport,
        "$-$descent of the objective": -descent,
    }
    summed = {name: np.concatenate([[0.0], np.cumsum(part)]) for name, part in terms.items()}
    figure = new_figure()
    ax = figure.subplots()
    _stack(ax, curve.times, summed)
    ax.plot(curve.times, curve.energy - curve.energy[0], color="black", label="energy change")
    ax.set_xlabel(TIME)
    ax.set_ylabel("energy since the start")
    legend_above(figure, ax)
    return figure


def _stack(ax: Axes, times: Array, terms: Mapping[str, Array]) -> None:
    """Positive parts stacked upwards from zero, negative parts downwards."""
    for side in (np.maximum, np.minimum):
        base = np.zeros_like(times)
        for index, (name, values) in enumerate(terms.items()):
            part = side(values, 0)
            if part.any():
                color = PALETTE[STACK_COLORS[index % len(STACK_COLORS)]]
                ax.fill_between(
                    times, base, base + part, color=color, alpha=0.75, linewidth=0, label=name
                )
                base = base + part
    ax.axhline(0, color="black", linewidth=0.8)


@styled
def plot_balance(balance: EnergyBalance) -> Figure:
    """An energy balance: its signed terms stacked, and what does not add up on a log axis.

    The *residual* leaves the defect out: it vanishes for a gradient flow only.  The *closure*
    subtracts the defect: it is numerical error.  Exact zeros, as at the start, are not drawn.
    """
    if not isinstance(balance, EnergyBalance):
        raise TypeError(
            "balance must be an EnergyBalance, which jko.energy_balance(curve) makes, got "
            f"{type(balance).__name__}"
        )
    stacked = {label: sign * balance.terms[name] for name, (sign, label) in BALANCE_TERMS.items()}
    figure = new_figure(7.2, 5.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.9, 1])
    _stack(upper, balance.times, stacked)
    upper.plot(balance.times, balance.terms["energy_change"], color="black", label="energy change")
    upper.set_ylabel("energy since the start")
    for values, style, color, label in (
        (balance.residual, "-", "vermilion", "|residual|"),
        (balance.closure, ":", "black", "|closure|"),
    ):
        shown = np.where(values == 0, np.nan, np.maximum(np.abs(values), FLOOR))
        lower.semilogy(balance.times, shown, style, color=PALETTE[color], label=label)
    lower.set_ylabel("residual, closure\n[energy]")
    lower.set_xlabel(TIME)
    legend_above(figure, [upper, lower], 3)
    return figure


@styled
def plot_distances(
    times: ArrayLike, distances: Mapping[str, ArrayLike], name: str = "W₂"
) -> Figure:
    """Distances between curves over time (radians, log axis); zeros are left out.

    Parameters
    ----------
    times : (m,) array_like
    distances : mapping of str to (m,) array_like
    name : str
        What the distances are.
    """
    figure = new_figure()
    ax = figure.subplots()
    colors = [PALETTE[color] for color in ("green", "vermilion", "black", "purple")]
    styles = ["-", "-", "--", ":"]
    for (pair, values), color, style in zip(distances.items(), colors, styles, strict=False):
        values = np.asarray(values, dtype=float)
        ax.plot(times, np.where(values > 0, values, np.nan), style, color=color, label=pair)
    ax.set_yscale("log")
    ax.set_xlabel(TIME)
    ax.set_ylabel(f"{name} [rad]")
    legend_above(figure, ax, 3)
    return figure


def sample_indices(count: int, most: int = SAMPLES) -> NDArray[np.intp]:
    """At most ``most`` equispaced indices below ``count``, first and last included."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.intp))


def _rates(
    curve: Curve, quantity: Callable[[AttentionModel, TokenCloud, float], float], integral: str
) -> tuple[Array, Array] | None:
    """A rate along a curve: from the model, or else from the integral that the flow carried."""
    if curve.model is not None:
        model = curve.model
        work = curve.points.shape[1] ** 2 * model.heads(float(curve.times[0])).count
        most = int(np.clip(EXPONENTIALS / work, 10, SAMPLES))
        index = sample_indices(curve.times.size, most)
        values = [quantity(model, curve.cloud(int(k)), float(curve.times[k])) for k in index]
        return curve.times[index], np.array(values)
    if integral in curve.integrals and curve.times.size > 1:
        middle = (curve.times[1:] + curve.times[:-1]) / 2
        return middle, np.diff(curve.integrals[integral]) / np.diff(curve.times)
    return None


@styled
def plot_slopes(curves: Curves) -> Figure:
    r"""Squared slope :math:`G^2` along every curve, and the softmax flow's squared metric speed.

    For one head both agree along the softmax flow; for several they differ, and the metric
    speed (often reported as a slope) is not the slope of the energy.
    """
    curves = as_curves(curves)
    figure = new_figure()
    ax = figure.subplots()
    for curve in curves:
        slope = _rates(curve, lambda m, c, t: m.slope_squared(c, t), "slope_squared")
        if slope is not None:
            label = f"$G^2$, {curve_label(curve)}"
            ax.plot(*slope, line_style(curve), color=curve_color(curve), label=label)
        if curve.kind == "flow" and curve.scheme == "softmax":
            speed = _rates(
                curve,
                lambda m, c, t: m.metric_speed_squared(c, t, "softmax"),
                "metric_speed_squared",
            )
            if speed is not None:
                label = "speed², softmax flow"
                ax.plot(*speed, ":", color=PALETTE["purple"], linewidth=2.4, label=label)
    ax.set_xlabel(TIME)
    ax.set_ylabel("squared slope, squared speed\n[energy / time]")
    legend_above(figure, ax)
    return figure


def defect_over_time(curve: Curve) -> tuple[Array, Array, Array]:
    r"""Times, rate and integral of the defect.

    Of a flow, its own defect, the integral being the one carried with the ODE.  Of a movement,
    the defect that the softmax velocity has at its measures (trapezoidal rule).

    Raises
    ------
    ValueError
        If the curve is a movement without a model.
    """
    if curve.kind == "flow" and curve.scheme == "gradient":
        return curve.times, np.zeros_like(curve.times), curve.integrals["defect"]
    found = _rates(curve, lambda m, c, t: m.defect_rate(c, t), "defect")
    if found is None:
        raise ValueError("curve.model is None: the defect of a movement needs its weight path")
    times, rate = found
    if curve.kind == "flow":
        return times, rate, np.interp(times, curve.times, curve.integrals["defect"])
    pieces = np.diff(times) * (rate[1:] + rate[:-1]) / 2
    return times, rate, np.concatenate([[0.0], np.cumsum(pieces)])


@styled
def plot_defect(curve: Curve) -> Figure:
    r"""Defect over time: the rate :math:`\frac12\int\hat b|v - v_{grad}|^2 d\mu`, and its integral.

    For a flow next to the energy it dissipated (the work of the heads put aside).

    Parameters
    ----------
    curve : Curve
        Preferably the softmax flow; see `defect_over_time`.
    """
    times, rate, total = defect_over_time(require_curve(curve))
    figure = new_figure(7.2, 3.4)
    left, right = figure.subplots(1, 2)
    color = PALETTE["vermilion"]
    left.fill_between(times, rate, color=color, alpha=0.25, linewidth=0)
    left.plot(times, rate, color=color)
    left.set_title("defect rate")
    left.set_xlabel(TIME)
    left.set_ylabel("defect rate [energy / time]")
    right.plot(times, total, color=color, label="integrated defect")
    if curve.kind == "flow":
        lost = curve.energy[0] - curve.energy + curve.integrals["energy_time_derivative"]
        right.plot(curve.times, lost, "--", color="black", label="energy dissipated")
    right.set_title("integrated")
    right.set_xlabel(TIME)
    right.set_ylabel("energy")
    for ax in (left, right):
        ax.set_ylim(min(0.0, *ax.get_ylim()), max(ax.get_ylim()[1], 1e-12))
    legend_above(figure, right)
    return figure


@styled
def plot_certificates(curve: Curve) -> Figure:
    """Every step's certificate: plan gap, gradient norm, optimality gap, and what is proven.

    Raises
    ------
    ValueError
        If the curve has no steps.
    """
    if not require_curve(curve).steps:
        raise ValueError("curve must be a minimizing movement with at least one step")
    times = curve.times[1:]
    certificates = [step.certificate for step in curve.steps]
    figure = new_figure(7.2, 4.8)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2.4, 1])
    series = {
        "gradient norm (relative)": ([c.gradient_norm for c in certificates], "blue", "o"),
        "plan gap (relative)": ([c.plan_gap for c in certificates], "orange", "s"),
        "optimality gap (energy)": ([c.optimality_gap for c in certificates], "purple", "x"),
    }
    for label, (values, color, marker) in series.items():
        shown = np.maximum(np.asarray(values, dtype=float), FLOOR)
        face = PALETTE[color] if marker == "o" else "none"
        upper.semilogy(
            times,
            shown,
            marker,
            color=PALETTE[color],
            markerfacecolor=face,
            markersize=4,
            label=label,
        )
    upper.set_ylabel(f"value, {FLOOR:g} or less\nat the bottom")
    widths = np.diff(curve.times)
    shares = np.array([c.proven_tokens / max(c.total_tokens, 1) for c in certificates])
    for name, color in OPTIMALITY_COLORS.items():
        chosen = np.array([c.optimality == name for c in certificates])
        if chosen.any():
            lower.bar(
                times[chosen] - widths[chosen] / 2,
                shares[chosen],
                widths[chosen],
                color=color,
                label=f"{name} ({int(chosen.sum())} of {chosen.size} steps)",
            )
    lower.set_ylim(0, 1.02)
    lower.set_ylabel("proven\ntokens")
    lower.set_xlabel(TIME)
    legend_above(figure, [upper, lower], 3)
    return figure
