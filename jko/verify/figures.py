"""The figures behind the theorem card, drawn from the laboratory's runs."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from ..plotting import (
    Illustration,
    plot_balance,
    plot_bounds,
    plot_convergence,
    plot_defect,
    plot_energy,
    plot_head_counts,
    plot_optimality,
    plot_residuals,
    plot_shares,
    plot_slopes,
    plot_taylor,
    plot_tokens,
)
from .claims_article import rough_averages, rough_exponents, smooth_levels
from .claims_distance import dynamic_study, frozen_study
from .claims_flows import article_draws, flow_balances
from .claims_limits import limit_study
from .claims_model import taylor_study
from .claims_steps import IDENTITY_TOLERANCE, identity_balances
from .laboratory import Laboratory

__all__ = ["illustrations"]

Draw = Callable[[Laboratory], Figure]

CASE = "sphere_three_heads"


def _tokens(laboratory: Laboratory) -> Figure:
    return plot_tokens(laboratory.showcase())


def _energy(laboratory: Laboratory) -> Figure:
    return plot_energy(laboratory.showcase())


def _convergence(laboratory: Laboratory) -> Figure:
    one, three = (limit_study(laboratory, name) for name in ("sphere_one_head", CASE))
    weighted = limit_study(laboratory, "sphere_weighted")
    labels = [f"JKO to softmax flow, {text}" for text in ("H = 3", "H = 4, weighted tokens")]
    errors = {
        "JKO to gradient flow, H = 3": three.to_gradient,
        labels[0]: three.to_softmax,
        "JKO to gradient flow, H = 1": one.to_gradient,
        labels[1]: weighted.to_softmax,
    }
    limits = dict(zip(labels, (three.between_flows, weighted.between_flows), strict=True))
    return plot_convergence(three.steps, errors, limits)


def _gradient_balance(laboratory: Laboratory) -> Figure:
    return plot_balance(flow_balances(laboratory)[CASE, "gradient"])


def _softmax_balance(laboratory: Laboratory) -> Figure:
    return plot_balance(flow_balances(laboratory)[CASE, "softmax"])


def _defect(laboratory: Laboratory) -> Figure:
    return plot_defect(laboratory.flow(CASE, "softmax"))


def _shares(laboratory: Laboratory) -> Figure:
    shares = {str(count): draws.share for count, draws in article_draws(laboratory).items()}
    label = "loss that does not happen [% of\n½∫ speed² + ½∫ slope²]"
    return plot_shares(shares, label, "number of heads H")


#: Flow and carried integral, with the name of its time average.
LONG_RUNS = {
    ("softmax", "metric_speed_squared"): r"softmax flow, $\int\hat b|v_{soft}|^2d\mu$",
    ("softmax", "slope_squared"): "softmax flow, $G^2$",
    ("gradient", "slope_squared"): "gradient flow, $G^2$",
}


def _rough(laboratory: Laboratory) -> Figure:
    averages, laws = rough_averages(laboratory), rough_exponents(laboratory)
    samples = {f"{name}: {laws[key]}": averages[key] for key, name in LONG_RUNS.items()}
    counts = laboratory.extent.article.rough_heads
    return plot_head_counts(counts, samples, "average over the second half", -1)


def _oscillating(laboratory: Laboratory) -> Figure:
    levels, end = smooth_levels(laboratory), laboratory.extent.article.smooth_horizon
    windows = {f"to t = {end / 5:g}": 0, f"to t = {end:g}": 1}
    samples = {
        f"{LONG_RUNS[key]}, {window}": levels[key][:, column]
        for window, column in windows.items()
        for key in LONG_RUNS
    }
    counts = laboratory.extent.article.smooth_heads
    return plot_head_counts(counts, samples, "average over a window's second half")


def _slopes(laboratory: Laboratory) -> Figure:
    return plot_slopes(laboratory.showcase())


def _certificates(laboratory: Laboratory) -> Figure:
    runs = laboratory.certified_runs()
    return plot_optimality(
        {f"{name}, step {step:g}": curve.steps for (name, step), curve in runs.items()}
    )


def _identity(laboratory: Laboratory) -> Figure:
    closures = {
        f"step {step:g}": balance.relative_closure
        for step, balance in identity_balances(laboratory).items()
    }
    return plot_residuals(closures, IDENTITY_TOLERANCE, "residual / variation of the energy")


def _taylor(laboratory: Laboratory) -> Figure:
    study = taylor_study(laboratory)
    return plot_taylor(study.sizes, study.remainders | {"gradient 1 % too long": study.control})


def _frozen(laboratory: Laboratory) -> Figure:
    study = frozen_study(laboratory)
    return plot_bounds(study.lower, {"frozen": study.ratio}, study.upper, "$W^2 / W_2^2$")


def _dynamic(laboratory: Laboratory) -> Figure:
    study = dynamic_study(laboratory)
    return plot_bounds(study.lower, {"dynamic": study.ratio}, study.upper, "$W^2 / W_2^2$")


FIGURES: tuple[tuple[str, str, str, Draw], ...] = (
    (
        "convergence",
        "JKO against both flows as the step shrinks",
        "Wasserstein distance at the final time. To the gradient flow it falls with slope 1. To "
        "the "
        "multi-head softmax flow it levels off at the distance between the two flows (dashed).",
        _convergence,
    ),
    (
        "tokens",
        "Tokens on the sphere",
        "Three heads, 40 tokens, both hemispheres in equal-area projection. JKO (dots) sits in the "
        "squares of the gradient flow and leaves the crosses of the softmax flow.",
        _tokens,
    ),
    (
        "defect",
        "The defect of multi-head softmax attention",
        "Rate and integral of ½∫b̂|v_soft - v_grad|² along the softmax flow with three heads, "
        "and the "
        "energy it dissipated (the heads' work put aside). A gradient flow has no defect.",
        _defect,
    ),
    (
        "shares",
        "The defect in the article's setting",
        "Softmax flows of 200 octahedral tokens with frozen heads Z + Z^T to T = 5. The energy "
        "identity predicts a loss of ½∫ speed² + ½∫ slope²; shown is the share of it that does not "
        "happen. Above 100 % the energy rises.",
        _shares,
    ),
    (
        "ornstein_uhlenbeck",
        "Ornstein-Uhlenbeck heads: time averages against the number of heads",
        "Mean over paths, bars from the least to the largest path; in the legend the fitted "
        "exponent and its 95 % bootstrap interval. What the article plots (the squared speed) "
        "falls like 1/H; the squared slope falls more slowly.",
        _rough,
    ),
    (
        "oscillating",
        "Oscillating heads: levels against the number of heads",
        "With more heads the level falls as long as one waits: early averages are those of a "
        "decaying transient. Only the squared slope along the softmax flow stays.",
        _oscillating,
    ),
    (
        "energy",
        "Energy",
        "Three heads. The heads change with time and do work on the energy, so it need not fall.",
        _energy,
    ),
    (
        "balance_gradient",
        "Energy balance of the gradient flow",
        "The terms of the balance since the start, stacked with their signs; below, what does not "
        "add up. Residual and closure agree: there is no defect.",
        _gradient_balance,
    ),
    (
        "balance_softmax",
        "Energy balance of the softmax flow",
        "The same for the softmax flow: without the defect the balance is off by the residual; "
        "with "
        "it, it closes to the integrator's error.",
        _softmax_balance,
    ),
    (
        "slopes",
        "Slopes over time",
        "Squared slope of the energy along every curve. The squared metric speed of the softmax "
        "flow "
        "is another quantity as soon as H > 1, and is not a slope of this energy.",
        _slopes,
    ),
    (
        "certificates",
        "Certificates of the steps",
        "Proven: every token's position is proven to be the global minimum of its own problem. "
        "Searched: nothing better was found, which proves nothing.",
        _certificates,
    ),
    (
        "identity",
        "Discrete energy-dissipation identity",
        "Summed residual over the steps with three oscillating heads, by step size, relative to "
        "the "
        "variation of the energy.",
        _identity,
    ),
    (
        "taylor",
        "Energy gradient against finite differences",
        "Taylor remainder of the energy along geodesic moves of all tokens. A right gradient gives "
        "slope 2; one that is 1 % off bends to slope 1.",
        _taylor,
    ),
    (
        "bounds_frozen",
        "Weighted against plain Wasserstein distance, frozen mobility",
        "Squared ratio for random pairs of clouds. Bars: extremes of the mobility over the source "
        "tokens.",
        _frozen,
    ),
    (
        "bounds_dynamic",
        "Weighted against plain Wasserstein distance, dynamic",
        "Squared ratio for random pairs. Bars: least mobility along the optimal path to largest "
        "along the plain geodesic.",
        _dynamic,
    ),
)


def illustrations(laboratory: Laboratory) -> tuple[Illustration, ...]:
    """All figures; one that cannot be drawn says why in its caption."""
    return tuple(_illustrate(laboratory, *entry) for entry in FIGURES)


def _illustrate(
    laboratory: Laboratory, key: str, title: str, caption: str, draw: Draw
) -> Illustration:
    figure: Figure | None = None
    try:
        figure = draw(laboratory)
    except (ArithmeticError, RuntimeError, ValueError, MemoryError) as problem:
        caption = f"{caption} Could not be drawn: {type(problem).__name__}: {problem}"
    return Illustration(key=key, title=title, caption=caption, figure=figure)
