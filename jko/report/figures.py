"""The figures of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from matplotlib.figure import Figure

from ..diagnostics.balance import energy_balance
from ..plotting import (
    Illustration,
    curve_label,
    plot_balance,
    plot_certificates,
    plot_defect,
    plot_dissipation,
    plot_distances,
    plot_energy,
    plot_slopes,
    plot_tokens,
)
from .comparison import Comparison

__all__ = ["run_illustrations"]

Entry = tuple[str, str, str, Callable[[], Figure]]


def run_illustrations(comparison: Comparison) -> tuple[Illustration, ...]:
    """All figures that the run has data for; one that cannot be drawn says why."""
    return tuple(_illustrate(*entry) for entry in _entries(comparison))


def _illustrate(key: str, title: str, caption: str, draw: Callable[[], Figure]) -> Illustration:
    figure: Figure | None = None
    try:
        figure = draw()
    except (ArithmeticError, ValueError, MemoryError) as problem:
        caption = f"{caption} Could not be drawn: {type(problem).__name__}: {problem}"
    return Illustration(key=key, title=title, caption=caption, figure=figure)


def _entries(comparison: Comparison) -> Iterator[Entry]:
    movement, curves = comparison.movement, comparison.curves
    yield (
        "tokens",
        "Tokens",
        _token_caption(movement.points.shape[2]),
        lambda: plot_tokens(curves),
    )
    if comparison.distances and comparison.times.size > 1:
        yield (
            "distances",
            f"{curve_label(movement)} against both flows",
            f"Distance between the curves over time ({comparison.distance_name}). The distance "
            "to the "
            "gradient flow is the scheme's error and shrinks with the step; to a multi-head "
            "softmax "
            "flow it does not.",
            lambda: plot_distances(
                comparison.times, comparison.distances, comparison.distance_name
            ),
        )
    yield (
        "defect",
        "Defect of softmax attention",
        _defect_caption(comparison),
        lambda: plot_defect(comparison.defect_curve),
    )
    yield (
        "energy",
        "Energy",
        "Energy E(μ, t) along every curve. Heads that change with time do work on it.",
        lambda: plot_energy(curves),
    )
    yield from _energy_entries(comparison)
    if movement.steps:
        yield (
            "certificates",
            "Certificates",
            "Every step's relative gradient norm, plan gap and optimality gap; below, the share of "
            "tokens whose position is proven to be the global minimum of its own problem.",
            lambda: plot_certificates(movement),
        )


def _energy_entries(comparison: Comparison) -> Iterator[Entry]:
    """Where the energy goes, and how steep it is."""
    movement, curves = comparison.movement, comparison.curves
    if movement.steps and movement.scheme == "jko":
        yield (
            "dissipation",
            "Where the energy of the movement goes",
            "Per step: the work of the heads, the transport cost W²/2τ, and the descent of the "
            "objective, which equals the De Giorgi integral of the slope. Their sum, positive "
            "areas minus negative ones, is the change of the energy.",
            lambda: plot_dissipation(movement),
        )
    for name, flow in comparison.flows.items():
        yield (
            f"balance_{name}",
            f"Energy balance of the {curve_label(flow)}",
            "Terms of the balance since the start, stacked with their signs: positive areas minus "
            "negative ones are the change of the energy. Below, what is left: the residual leaves "
            "the defect out, the closure takes it in (exact zeros, as at the start, are not drawn).",
            lambda flow=flow: plot_balance(energy_balance(flow)),  # type: ignore[misc]
        )
    yield (
        "slopes",
        "Slopes",
        "Squared slope of the energy along every curve, and the squared metric speed of the "
        "softmax "
        "flow: another quantity as soon as there are several heads.",
        lambda: plot_slopes(curves),
    )


def _token_caption(dim: int) -> str:
    if dim == 2:
        return "Tokens on the circle, every curve on a radius of its own."
    if dim == 3:
        return "Both hemispheres in equal-area projection, the lower one seen through from above."
    return f"First three principal coordinates of all tokens of all curves (d = {dim})."


def _defect_caption(comparison: Comparison) -> str:
    return (
        "Rate and integral of ½∫b̂|v_soft − v_grad|² dμ: what keeps multi-head softmax attention "
        "from "
        f"being this gradient flow. {comparison.defect_sentence}"
    )
