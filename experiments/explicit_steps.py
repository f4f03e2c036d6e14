"""How far time averages under few Ornstein-Uhlenbeck heads spread, and what explicit steps add.

The squared speed of the softmax flow, averaged over the second half of [0, 20], path by path: with
Heun steps along exactly sampled heads, with explicit Euler steps along the same heads, and with
Euler steps for tokens and heads alike (Euler-Maruyama), as a plain simulation takes them.

    python experiments/explicit_steps.py [--quick] [--out DIR] [--seeds K] [--workers N]
"""

from __future__ import annotations

import jko
import matplotlib as mpl
import numpy as np
from jko.diagnostics.limits import article_model, time_average
from jko.plotting import PALETTE, save_figure
from jko.plotting.style import STYLE
from matplotlib.figure import Figure

from _common import arguments, article_cloud, sweep, ticks, write_table

#: An explicit simulation of the article's setting: means over four paths.
SIMULATED = {1: 0.57, 2: 0.21, 5: 0.091, 10: 0.053}
SIMULATED_PATHS = 4
RESAMPLES = 100_000

#: Method of the tokens, step, and whether the heads take Euler-Maruyama steps as well.
SCHEMES = {
    "Heun 0.05": ("heun", 0.05, False),
    "Euler 0.1": ("euler", 0.1, False),
    "Euler-Maruyama 0.1": ("euler", 0.1, True),
}
COLORS = ("blue", "green", "vermilion")


def euler_maruyama(
    start: jko.Heads, horizon: float, step: float, rng: np.random.Generator
) -> jko.weights.Interpolated:
    """``D + step (I - D) + sqrt(2 step) (Z + Z^T)/2`` from grid time to grid time."""
    count = round(horizon / step)
    noise = rng.standard_normal((count, *start.matrices.shape))
    matrices = [start.matrices]
    for z in np.sqrt(2 * step) * (noise + noise.swapaxes(-1, -2)) / 2:
        matrices.append(matrices[-1] + step * (np.eye(start.dim) - matrices[-1]) + z)
    return jko.weights.Interpolated(step * np.arange(count + 1), np.array(matrices))


def average(
    *, scheme: str, heads: int, seed: int, tokens: int, horizon: float
) -> dict[str, np.ndarray]:
    """The time average of one path."""
    method, step, sampled = SCHEMES[scheme]
    rng = np.random.default_rng([seed, heads, 1])
    if sampled:
        path = euler_maruyama(jko.Heads.gaussian(heads, 3, rng), horizon, step, rng)
        model = jko.AttentionModel(path)
    else:
        model = article_model("ornstein-uhlenbeck", heads, 3, horizon, rng)
    times = [0.0, horizon / 2, horizon]
    curve = jko.particle_flow(
        model,
        article_cloud(tokens, 3, seed),
        (0, horizon),
        "softmax",
        method,
        step=step,
        t_eval=times,
    )
    return {"average": np.array(time_average(curve, "metric_speed_squared", *times[1:]))}


def table(values: dict[tuple[str, int], np.ndarray]) -> list[dict]:
    """Mean and spread over paths, and how often four paths are as far off as the simulation."""
    rows = []
    rng = np.random.default_rng(0)
    for (scheme, heads), paths in values.items():
        mean = paths.mean()
        few = rng.choice(paths, (RESAMPLES, SIMULATED_PATHS)).mean(axis=1)
        deviation = float(paths.std(ddof=1)) if paths.size > 1 else 0.0
        low, median, high = np.quantile(paths, (0.05, 0.5, 0.95))
        centred = paths - mean
        rows.append(
            {
                "scheme": scheme,
                "heads": heads,
                "paths": paths.size,
                "mean": float(mean),
                "standard_error": deviation / paths.size**0.5,
                "deviation": deviation,
                "skewness": float((centred**3).mean() / deviation**3) if deviation else 0.0,
                "quantile_5": float(low),
                "median": float(median),
                "quantile_95": float(high),
                "simulated": SIMULATED[heads],
                "share_as_far": float(np.mean(np.abs(few - mean) >= abs(SIMULATED[heads] - mean))),
            }
        )
    return rows


def draw(values: dict[tuple[str, int], np.ndarray], counts: tuple[int, ...]) -> Figure:
    """Averages times H: single paths as dots, means with their standard errors, by scheme."""
    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    ax = figure.subplots()
    for index, (scheme, color) in enumerate(zip(SCHEMES, COLORS, strict=True)):
        shift = 1.09 ** (index - 1)
        style = dict(color=PALETTE[color])
        for heads in counts:
            paths = heads * values[scheme, heads]
            ax.plot(np.full(paths.size, heads * shift), paths, ".", alpha=0.25, **style)
            label = scheme if heads == counts[0] else None
            error = paths.std(ddof=1) / paths.size**0.5 if paths.size > 1 else 0.0
            place = (heads * shift, paths.mean())
            ax.errorbar(*place, error, fmt="_", markersize=12, capsize=3, label=label, **style)
    simulated = [heads * SIMULATED[heads] for heads in counts]
    ax.plot(counts, simulated, "kD", fillstyle="none", label="explicit simulation, 4 paths")
    ax.set_xscale("log")
    ticks(ax, counts)
    ax.set_xlabel("number of heads H")
    ax.set_ylabel(r"H $\times$ average of $\int\hat b|v_{soft}|^2 d\mu$")
    figure.legend(loc="outside upper center", ncols=3, fontsize=8.5)
    return figure


def main() -> None:
    parsed = arguments(__doc__, "explicit_steps", 64)
    counts, size = (1, 2, 5, 10), dict(tokens=100, horizon=20.0)
    if parsed.quick:
        counts, size = (1, 2), dict(tokens=12, horizon=1.0)
    members = {
        f"{scheme.replace(' ', '_')},H={heads},seed={seed}": dict(
            scheme=scheme, heads=heads, seed=seed, **size
        )
        for scheme in SCHEMES
        for heads in counts
        for seed in range(parsed.seeds)
    }
    results = sweep(average, members, parsed)
    values = {
        (scheme, heads): np.array(
            [
                float(results[f"{scheme.replace(' ', '_')},H={heads},seed={seed}"]["average"])
                for seed in range(parsed.seeds)
            ]
        )
        for scheme in SCHEMES
        for heads in counts
    }
    write_table(parsed.out / "averages.csv", table(values))
    with mpl.rc_context(STYLE):
        save_figure(draw(values, counts), parsed.out / "explicit_steps.png")


if __name__ == "__main__":
    main()
