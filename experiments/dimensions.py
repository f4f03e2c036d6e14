"""Both regimes in other dimensions: the circle with five clusters, S^4 and S^9.

python experiments/dimensions.py [--quick] [--out DIR] [--seeds K] [--workers N]
"""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from jko.diagnostics.limits import fit_power_law
from jko.plotting import PALETTE, save_figure
from jko.plotting.style import STYLE
from matplotlib.figure import Figure

from _common import arguments, article_flow, mean_rates, sweep, ticks, write_table

LINES = {
    ("softmax", "metric_speed_squared"): (r"softmax flow, $\int\hat b|v_{soft}|^2$", "blue"),
    ("softmax", "slope_squared"): ("softmax flow, $G^2$", "green"),
    ("gradient", "slope_squared"): ("gradient flow, $G^2$", "vermilion"),
}


def settings(quick: bool) -> dict[str, dict]:
    if quick:
        return {
            "ornstein-uhlenbeck": dict(heads=(1, 3), tokens=10, horizon=1.0, saved=2, step=0.1),
            "oscillating": dict(heads=(1, 3), tokens=10, horizon=1.0, saved=2, rtol=1e-5),
        }
    return {
        "ornstein-uhlenbeck": dict(
            heads=(1, 2, 5, 10, 20), tokens=100, horizon=20.0, saved=40, step=0.05
        ),
        "oscillating": dict(
            heads=(1, 2, 3, 5, 10), tokens=100, horizon=100.0, saved=40, rtol=1e-6
        ),
    }


def members(quick: bool, seeds: int, dims: tuple[int, ...]) -> dict[str, dict]:
    found = {}
    for dim in dims:
        for regime, setting in settings(quick).items():
            run = {key: value for key, value in setting.items() if key != "heads"}
            for velocity in ("softmax", "gradient"):
                for heads in setting["heads"]:
                    for seed in range(seeds):
                        name = f"d={dim},{regime},{velocity},H={heads},seed={seed}"
                        found[name] = dict(
                            dim=dim,
                            regime=regime,
                            velocity=velocity,
                            heads=heads,
                            seed=seed,
                            **run,
                        )
    return found


def averages(results: dict, dim: int, regime: str, line: tuple, setting: dict, seeds: int):
    """Averages over the second half of the run: (seeds, heads)."""
    velocity, quantity = line
    end = setting["horizon"]
    return np.array(
        [
            [
                mean_rates(
                    results[f"d={dim},{regime},{velocity},H={heads},seed={seed}"], end / 2, end
                )[quantity]
                for heads in setting["heads"]
            ]
            for seed in range(seeds)
        ]
    )


def table(results: dict, quick: bool, seeds: int, dims: tuple[int, ...]) -> list[dict]:
    """Exponents in H and values at one, two and ten heads."""
    rows = []
    for dim in dims:
        for regime, setting in settings(quick).items():
            for line in LINES:
                values = averages(results, dim, regime, line, setting, seeds)
                law = fit_power_law(setting["heads"], np.maximum(values, 1e-16))
                entry = {
                    "dim": dim,
                    "regime": regime,
                    "flow": line[0],
                    "quantity": line[1],
                    "exponent": law.exponent,
                    "low": law.interval[0],
                    "high": law.interval[1],
                }
                at = zip((1, 2, 10), _at(setting, values.mean(axis=0)), strict=True)
                rows.append(entry | {f"H={h}": float(v) for h, v in at})
    return rows


def _at(setting: dict, mean: np.ndarray) -> list[float]:
    """Values at one, two and ten heads (the last number of heads in the quick version)."""
    heads = list(setting["heads"])
    return [mean[heads.index(h)] if h in heads else mean[-1] for h in (1, 2, 10)]


def draw(results: dict, quick: bool, seeds: int, dims: tuple[int, ...]) -> Figure:
    figure = Figure(figsize=(3.3 * len(dims), 5.8), layout="constrained")
    axes = figure.subplots(2, len(dims), squeeze=False)
    for column, dim in enumerate(dims):
        for row, (regime, setting) in enumerate(settings(quick).items()):
            ax = axes[row, column]
            for line, (label, color) in LINES.items():
                values = averages(results, dim, regime, line, setting, seeds)
                shown = np.maximum(values.mean(axis=0), 1e-16)
                ax.plot(setting["heads"], shown, "o-", color=PALETTE[color], label=label)
            ax.set_yscale("log")
            if row == 0:
                ax.set_xscale("log")
                ticks(ax, setting["heads"])
            ax.set_title(f"d = {dim}, {regime}", fontsize=9)
            ax.set_xlabel("number of heads H")
    axes[0, 0].set_ylabel("average over the second half")
    axes[1, 0].set_ylabel("average over the second half")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=8.5)
    return figure


def main() -> None:
    parsed = arguments(__doc__, "dimensions", 4)
    dims = (2, 5) if parsed.quick else (2, 5, 10)
    results = sweep(article_flow, members(parsed.quick, parsed.seeds, dims), parsed)
    write_table(parsed.out / "dimensions.csv", table(results, parsed.quick, parsed.seeds, dims))
    with mpl.rc_context(STYLE):
        figure = draw(results, parsed.quick, parsed.seeds, dims)
        save_figure(figure, parsed.out / "dimensions.png")


if __name__ == "__main__":
    main()
