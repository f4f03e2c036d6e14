"""Stability in the initial cloud: growth of perturbations against the a-priori constant.

python experiments/groenwall.py [--quick] [--out DIR] [--seeds K] [--workers N]
"""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from jko.attention.heads import Heads
from jko.attention.model import AttentionModel
from jko.attention.weights import FromFunction
from jko.diagnostics.limits import article_model
from jko.diagnostics.stability import GrowthStudy, growth_study
from jko.plotting import PALETTE, save_figure
from jko.plotting.style import STYLE
from matplotlib.figure import Figure

from _common import arguments, article_cloud, sweep, write_table

SIZES = (1e-4, 1e-3, 1e-2, 1e-1)
COLORS = ("blue", "green", "orange", "vermilion")


def scaled_model(
    regime: str, heads: int, scale: float, sign: int, seed: int, horizon: float
) -> AttentionModel:
    """The article's heads, multiplied by ``scale``."""
    path = article_model(regime, heads, 3, horizon, np.random.default_rng([seed, heads, 1])).path

    def at(t: float) -> Heads:
        return Heads(scale * path(t).matrices)

    return AttentionModel(FromFunction(at), sign)


def measure(
    *,
    regime: str,
    heads: int,
    scale: float,
    sign: int,
    velocity: str,
    seed: int,
    tokens: int,
    horizon: float,
) -> dict[str, np.ndarray]:
    """Distances of flows from perturbed clouds, and the exponent that bounds their growth."""
    model = scaled_model(regime, heads, scale, sign, seed, horizon)
    times = np.linspace(0, horizon, 17)
    cloud = article_cloud(tokens, 3, seed)
    study = growth_study(model, cloud, times, SIZES, velocity, np.random.default_rng([seed, 5]))
    return {
        "times": times,
        "distances": study.distances,
        "exponent": study.exponent,
    }


def draw(results: dict, names: list[str]) -> Figure:
    figure = Figure(figsize=(9.6, 3.9), layout="constrained")
    axes = figure.subplots(1, len(names), sharey=True)
    for ax, name in zip(axes, names, strict=True):
        run = results[name]
        for size, row, color in zip(SIZES, run["distances"], COLORS, strict=True):
            ax.semilogy(run["times"], row, color=PALETTE[color], label=f"size {size:g}")
            bound = row[0] * np.exp(np.minimum(run["exponent"], 50))
            ax.semilogy(run["times"], bound, ":", color=PALETTE[color], linewidth=1)
        ax.set_ylim(1e-5, np.pi)
        ax.set_xlabel("time t")
        ax.set_title(name.rsplit(",", 1)[0], fontsize=9)
    axes[0].set_ylabel(r"$W_2(\mu_t, \nu_t)$ [rad]; dotted: bound")
    axes[1].legend(fontsize=8, loc="upper right")
    return figure


def main() -> None:
    parsed = arguments(__doc__, "groenwall", 2)
    size = dict(tokens=8, horizon=0.1) if parsed.quick else dict(tokens=40, horizon=2.0)
    cases = [
        dict(regime=regime, heads=heads, scale=scale, sign=sign, velocity=velocity)
        for regime in (("frozen",) if parsed.quick else ("frozen", "oscillating"))
        for heads in (3,)
        for scale in (0.1, 1.0)
        for sign in (1, -1)
        for velocity in ("gradient", "softmax")
    ]
    members = {
        "{regime},H={heads},scale={scale:g},{sign:+d},{velocity},seed={seed}".format(
            seed=seed, **case
        ): dict(seed=seed, **case, **size)
        for seed in range(parsed.seeds)
        for case in cases
    }
    results = sweep(measure, members, parsed)
    rows = []
    for name, run in results.items():
        study = GrowthStudy(sizes=np.array(SIZES), **run)
        rates = {
            "growth": float(study.growth.max()),
            "steepest": float(study.steepest.max()),
            "a_priori": study.a_priori,
        }
        share = max(rates["growth"], rates["steepest"]) / study.a_priori
        rows.append({"case": name} | rates | {"share": share, "slack": study.slack})
    write_table(parsed.out / "growth.csv", rows)
    shown = [f"frozen,H=3,scale={s},{g},gradient,seed=0" for s, g in (("0.1", "+1"), ("1", "+1"))]
    shown.append("frozen,H=3,scale=1,-1,gradient,seed=0")
    with mpl.rc_context(STYLE):
        save_figure(draw(results, shown), parsed.out / "groenwall.png")


if __name__ == "__main__":
    main()
