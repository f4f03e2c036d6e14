"""Which weight paths have finite length: along the sampled heads, and in law.

python experiments/integrability.py [--quick] [--out DIR] [--seeds K] [--workers N]
"""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from jko.attention.heads import Heads
from jko.attention.weights import OrnsteinUhlenbeck
from jko.diagnostics.integrability import (
    classify_length,
    head_distance,
    integrability,
    law_integrability,
    path_length,
)
from jko.diagnostics.limits import ManyHeads, article_model
from jko.plotting import PALETTE, save_figure
from jko.plotting.style import STYLE
from matplotlib.figure import Figure

from _common import arguments, sweep, ticks, write_table


def measure_path(*, regime: str, seed: int, horizon: float) -> dict[str, np.ndarray]:
    """Length of three heads of one regime, at doubling times and at 33 equispaced ones."""
    path = article_model(regime, 3, 3, horizon, np.random.default_rng([seed, 2])).path
    length = integrability(path, horizon)
    times = np.linspace(horizon / 32, horizon, 32)
    return {
        "times": times,
        "lengths": path_length(path, times),
        "decay": np.array(length.decay),
        "verdict": np.array(length.verdict.name),
    }


def measure_grid(*, base_step: float, seed: int, horizon: float) -> dict[str, np.ndarray]:
    """Length per unit time of one sampled head on a base grid: it diverges as the grid is refined."""
    rng = np.random.default_rng([seed, 3])
    path = OrnsteinUhlenbeck(
        Heads.gaussian(1, 3, rng), horizon=horizon, base_step=base_step, rng=rng
    )
    return {"rate": path_length(path, [horizon]) / horizon}


def measure_law(*, heads: int, seed: int, horizon: float) -> dict[str, np.ndarray]:
    """Distance between the heads as unlabelled measures one unit of time apart, late."""
    rng = np.random.default_rng([seed, 4])
    path = OrnsteinUhlenbeck(
        Heads.gaussian(heads, 3, rng), horizon=horizon, base_step=0.05, rng=rng
    )
    times = np.arange(horizon / 2, horizon - 0.5)
    return {"rate": np.mean([head_distance(path, t, t + 1) for t in times])}


def draw(paths: dict, law: np.ndarray, heads: list[int], rates: np.ndarray) -> Figure:
    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    colors = ("vermilion", "orange", "green", "blue")
    for (regime, result), color in zip(paths.items(), colors, strict=True):
        left.plot(
            result["times"],
            np.maximum(result["lengths"], 1e-3),
            color=PALETTE[color],
            label=regime + (" (length 0)" if regime == "frozen" else ""),
        )
    left.plot(law[0], law[1], "--", color="black", label="Ornstein-Uhlenbeck, in law")
    left.set_yscale("log")
    left.set_xlabel("time t")
    left.set_ylabel(r"length $\int_0^t |\dot\Theta|\,ds$")
    left.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 0.08))
    right.loglog(heads, rates.mean(axis=0), "o-", color=PALETTE["blue"])
    right.fill_between(heads, rates.min(axis=0), rates.max(axis=0), alpha=0.2)
    right.set_xlabel("number of heads H")
    right.set_ylabel(r"$W_2(\Theta_t, \Theta_{t+1})$, late times")
    right.set_title("H sampled heads as a measure")
    ticks(right, (1, 1.5, 2, 2.5, 3), "y")
    return figure


def main() -> None:
    parsed = arguments(__doc__, "integrability", 4)
    quick = parsed.quick
    horizon = 16.0 if quick else 64.0
    regimes = ("ornstein-uhlenbeck", "oscillating", "decaying", "frozen")
    seeds = range(parsed.seeds)
    paths = sweep(
        measure_path,
        {f"{r},seed={s}": dict(regime=r, seed=s, horizon=horizon) for r in regimes for s in seeds},
        parsed,
        "paths",
    )
    law = law_integrability(ManyHeads(), horizon)
    rows = [
        dict(
            path=name,
            length=float(r["lengths"][-1]),
            decay=float(r["decay"]),
            verdict=str(r["verdict"]),
        )
        for name, r in paths.items()
    ]
    rows.append(
        dict(
            path="ornstein-uhlenbeck in law",
            length=float(law.lengths[-1]),
            decay=law.decay,
            verdict=law.verdict.name,
        )
    )
    write_table(parsed.out / "verdicts.csv", rows)
    steps = (0.02, 0.01) if quick else (0.02, 0.01, 0.005, 0.0025)
    grids = sweep(
        measure_grid,
        {
            f"step={b},seed={s}": dict(base_step=b, seed=s, horizon=4.0)
            for b in steps
            for s in seeds
        },
        parsed,
        "grids",
    )
    write_table(
        parsed.out / "grids.csv", [dict(grid=n, rate=float(r["rate"][0])) for n, r in grids.items()]
    )
    heads = [1, 4, 16] if quick else [1, 2, 5, 10, 20, 50, 100, 200, 500]
    clouds = sweep(
        measure_law,
        {
            f"H={h},seed={s}": dict(heads=h, seed=s, horizon=8.0 if quick else 20.0)
            for s in seeds
            for h in heads
        },
        parsed,
        "clouds",
    )
    rates = np.array([float(r["rate"]) for r in clouds.values()]).reshape(len(seeds), len(heads))
    write_table(
        parsed.out / "clouds.csv",
        [dict(heads=h, rate=float(v)) for h, v in zip(heads, rates.mean(axis=0), strict=True)],
    )
    times = horizon / 64 * np.arange(1, 65)
    curve = [ManyHeads().wasserstein_speed(t - horizon / 128) * horizon / 64 for t in times]
    with mpl.rc_context(STYLE):
        first = {regime: paths[f"{regime},seed=0"] for regime in regimes}
        figure = draw(first, np.array([times, np.cumsum(curve)]), heads, rates)
        save_figure(figure, parsed.out / "integrability.png")
    print(classify_length(law.times, law.lengths).verdict.value)


if __name__ == "__main__":
    main()
