"""Long runs: what tokens become under frozen, decaying and oscillating heads, both signs, both flows.

python experiments/omega_limit.py [--quick] [--out DIR] [--seeds K] [--workers N]
"""

from __future__ import annotations

import jko
import matplotlib as mpl
import numpy as np
from jko.diagnostics.limits import article_model, cluster_count, late_times
from jko.plotting import PALETTE, save_figure
from jko.plotting.style import STYLE
from matplotlib.figure import Figure

from _common import arguments, article_cloud, sweep, ticks, write_table

REGIMES = {"frozen": "blue", "decaying": "green", "oscillating": "vermilion"}
FLOWS = {"gradient": "-", "softmax": "--"}
SIGNS = {1: "repulsive (sign +1)", -1: "attractive (sign -1)"}
RADIUS = 0.1


def long_run(
    *, regime: str, sign: int, velocity: str, seed: int, heads: int, tokens: int, horizon: float
) -> dict[str, np.ndarray]:
    """One run: slope and clusters at growing times, and a summary of its second half."""
    model = article_model(regime, heads, 3, horizon, np.random.default_rng([seed, heads, 1]), sign)
    growing = np.geomspace(0.1, horizon, 40)
    period = horizon - np.linspace(0, min(2 * np.pi, horizon / 4), 9)
    times = np.unique(np.concatenate([[0.0, horizon / 2], growing, period]))
    curve = jko.particle_flow(
        model, article_cloud(tokens, 3, seed), (0, horizon), velocity, rtol=1e-7, t_eval=times
    )
    if not curve.success:
        raise RuntimeError(curve.message)
    late = late_times(curve, horizon / 2, RADIUS)
    clouds = [curve.cloud(k) for k in range(times.size)]
    return {
        "times": times,
        "slope_squared": [model.slope_squared(c, t) for c, t in zip(clouds, times, strict=True)],
        "speed_squared": [
            model.metric_speed_squared(c, t, velocity) for c, t in zip(clouds, times, strict=True)
        ],
        "clusters": [cluster_count(c, RADIUS) for c in clouds],
        "late_slope_squared": late.slope_squared,
        "late_mean_slope_squared": late.mean_slope_squared,
        "late_mean_speed_squared": late.mean_speed_squared,
        "late_distance": late.largest_distance,
        "final": curve.points[-1],
    }


def table(results: dict, seeds: int) -> list[dict]:
    rows = []
    for sign in SIGNS:
        for regime in REGIMES:
            for velocity in FLOWS:
                runs = [results[f"{regime},{sign:+d},{velocity},seed={s}"] for s in range(seeds)]
                row = dict(sign=sign, regime=regime, flow=velocity)
                for name in ("mean_speed_squared", "mean_slope_squared", "distance"):
                    values = [float(run[f"late_{name}"]) for run in runs]
                    row[f"least_{name}"], row[f"largest_{name}"] = min(values), max(values)
                row["clusters"] = " ".join(str(int(run["clusters"][-1])) for run in runs)
                rows.append(row)
    return rows


def draw(results: dict) -> Figure:
    figure = Figure(figsize=(9.6, 6.2), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True)
    for column, (sign, title) in enumerate(SIGNS.items()):
        for regime, color in REGIMES.items():
            for velocity, dash in FLOWS.items():
                run = results[f"{regime},{sign:+d},{velocity},seed=0"]
                kept = run["times"] > 0
                style = dict(color=PALETTE[color], linestyle=dash, label=f"{regime}, {velocity}")
                speed = np.maximum(run["speed_squared"][kept], 1e-16)
                axes[0, column].loglog(run["times"][kept], speed, **style)
                axes[1, column].loglog(run["times"][kept], run["clusters"][kept], **style)
        axes[0, column].set_title(title)
        axes[1, column].set_xlabel("time t")
    axes[0, 0].set_ylabel(r"$\int\hat b\,|v|^2 d\mu$ of the flow")
    axes[1, 0].set_ylabel(f"clusters (gaps of {RADIUS:g} rad)")
    ticks(axes[1, 0], (2, 5, 10, 20, 40, 80), "y")
    ticks(axes[1, 1], (1, 2, 5, 10), "y")
    axes[0, 0].legend(fontsize=8)
    return figure


def main() -> None:
    parsed = arguments(__doc__, "omega_limit", 4)
    size = dict(heads=3, tokens=100, horizon=100.0)
    if parsed.quick:
        size = dict(heads=2, tokens=8, horizon=1.0)
    members = {
        f"{regime},{sign:+d},{velocity},seed={seed}": dict(
            regime=regime, sign=sign, velocity=velocity, seed=seed, **size
        )
        for seed in range(parsed.seeds)
        for sign in SIGNS
        for regime in REGIMES
        for velocity in FLOWS
    }
    results = sweep(long_run, members, parsed)
    write_table(parsed.out / "limits.csv", table(results, parsed.seeds))
    with mpl.rc_context(STYLE):
        save_figure(draw(results), parsed.out / "omega_limit.png")


if __name__ == "__main__":
    main()
