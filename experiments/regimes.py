"""The article's two regimes on S^2, along both flows: Ornstein-Uhlenbeck and oscillating heads.

For every regime, flow, number of heads and seed one run; from the stored runs the time averages of
both squared slopes against the number of heads, their evolution, the energy balance and tokens.
Single paths of few Ornstein-Uhlenbeck heads differ by a factor of three: few heads get many paths.

    python experiments/regimes.py [--quick] [--out DIR] [--seeds K] [--workers N]
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl
import numpy as np
from jko.diagnostics.limits import PowerLaw, fit_power_law_groups
from jko.plotting import PALETTE, save_figure
from jko.plotting.style import STYLE
from matplotlib.figure import Figure

from _common import INTEGRALS, arguments, article_flow, mean_rates, sweep, write_table

REGIMES = ("ornstein-uhlenbeck", "oscillating")
FLOWS = ("softmax", "gradient")
QUANTITIES = {
    "metric_speed_squared": r"$\int\hat b\,|v|^2 d\mu$",
    "slope_squared": r"$G^2 = \int |p|^2/\hat b\,d\mu$",
}
COLORS = ("blue", "sky", "green", "orange", "vermilion", "purple", "black")
#: Quantiles over draws between which bands and bars are drawn.
MIDDLE = (0.1, 0.9)
Results = dict[str, dict[str, np.ndarray]]


def settings(quick: bool) -> dict[str, dict]:
    """Draws for every number of heads, horizons of the averages, and run parameters of both regimes."""
    if quick:
        return {
            "ornstein-uhlenbeck": {
                "draws": {1: 1, 4: 1},
                "windows": (2.0,),
                "run": {"tokens": 24, "horizon": 2.0, "saved": 8, "step": 0.1, "keep": (0, 2)},
            },
            "oscillating": {
                "draws": {1: 1, 3: 1},
                "windows": (2.0, 4.0),
                "run": {"tokens": 24, "horizon": 4.0, "saved": 8},
            },
        }
    return {
        "ornstein-uhlenbeck": {
            "draws": {1: 64, 2: 64, 5: 32, 10: 32, 20: 16, 50: 8, 100: 8},
            "windows": (20.0,),
            "run": {
                "tokens": 100,
                "horizon": 20.0,
                "saved": 100,
                "step": 0.025,
                "keep": (0, 1, 5, 20),
            },
        },
        "oscillating": {
            "draws": dict.fromkeys(range(1, 11), 4),
            "windows": (20.0, 100.0, 400.0),
            "run": {
                "tokens": 100,
                "horizon": 400.0,
                "saved": 400,
                "rtol": 1e-6,
                "keep": (0, 5, 20, 100),
            },
        },
    }


def members(quick: bool, seeds: int) -> dict[str, dict]:
    found = {}
    for regime, setting in settings(quick).items():
        for count, draws in setting["draws"].items():
            for velocity in FLOWS:
                for seed in range(min(seeds, draws)):
                    found[f"{regime},{velocity},H={count},seed={seed}"] = dict(
                        regime=regime, heads=count, seed=seed, velocity=velocity, **setting["run"]
                    )
    return found


def chosen(results: Results, regime: str, velocity: str, heads: int) -> list[dict]:
    start = f"{regime},{velocity},H={heads},"
    return [result for name, result in results.items() if name.startswith(start)]


def averages(
    results: Results, regime: str, velocity: str, quantity: str, heads: Iterable[int], window: float
) -> list[np.ndarray]:
    """Averages over the second half of [0, window]: for every number of heads its draws."""
    return [
        np.array(
            [
                mean_rates(r, window / 2, window)[quantity]
                for r in chosen(results, regime, velocity, h)
            ]
        )
        for h in heads
    ]


def table(results: Results, quick: bool) -> list[dict]:
    rows = []
    for regime, setting in settings(quick).items():
        for velocity in FLOWS:
            for quantity in QUANTITIES:
                for window in setting["windows"]:
                    heads = setting["draws"]
                    values = averages(results, regime, velocity, quantity, heads, window)
                    for count, draws in zip(heads, values, strict=True):
                        deviation = float(draws.std(ddof=1)) if draws.size > 1 else 0.0
                        rows.append(
                            {
                                "regime": regime,
                                "flow": velocity,
                                "quantity": quantity,
                                "until": window,
                                "heads": count,
                                "seeds": draws.size,
                                "mean": float(draws.mean()),
                                "standard_error": deviation / draws.size**0.5,
                                "deviation": deviation,
                                "least": float(draws.min()),
                                "largest": float(draws.max()),
                            }
                        )
    return rows


def fits(
    results: Results, quick: bool, least: int = 1, largest: float = np.inf
) -> dict[tuple[str, str], PowerLaw]:
    """Exponents in H of the Ornstein-Uhlenbeck regime, by flow and quantity, over a range of H."""
    regime = "ornstein-uhlenbeck"
    setting = settings(quick)[regime]
    window = setting["windows"][-1]
    heads = [count for count in setting["draws"] if least <= count <= largest]
    found = {}
    for velocity in FLOWS:
        for quantity in QUANTITIES:
            values = averages(results, regime, velocity, quantity, heads, window)
            found[velocity, quantity] = fit_power_law_groups(heads, values)
    return found


def balances(results: Results, quick: bool) -> list[dict]:
    """How well the energy balance closes, relative to the energy's total variation.

    Over the whole run, and over its second half alone: stiff initial heads may spoil the start.
    """
    rows = []
    for regime, setting in settings(quick).items():
        for velocity in FLOWS:
            closures, late, shares = [], [], []
            for heads in setting["draws"]:
                for result in chosen(results, regime, velocity, heads):
                    terms = dict(zip(INTEGRALS, result["integrals"], strict=True))
                    loss = terms["metric_speed_squared"] / 2 + terms["slope_squared"] / 2
                    change = result["energy"] - result["energy"][0]
                    closure = change - terms["energy_time_derivative"] + loss - terms["defect"]
                    scale = np.abs(np.diff(result["energy"])).sum()
                    closures.append(np.abs(closure).max() / scale)
                    second = closure[closure.size // 2 :]
                    late.append(np.abs(second - second[0]).max() / scale)
                    if heads > 1:
                        shares.append(terms["defect"][-1] / loss[-1])
            rows.append(
                {
                    "regime": regime,
                    "flow": velocity,
                    "median_relative_closure": float(np.median(closures)),
                    "largest_relative_closure": float(max(closures)),
                    "largest_in_second_half": float(max(late)),
                    "median_defect_share": float(np.median(shares)),
                }
            )
    return rows


def draw_time(results: Results, quick: bool) -> Figure:
    """Both regimes side by side: the squared slope of the softmax flow over time."""
    figure = Figure(figsize=(9.6, 6.4), layout="constrained")
    axes = figure.subplots(2, 2, sharey="row")
    for column, (regime, setting) in enumerate(settings(quick).items()):
        shown = [h for h in setting["draws"] if h in (1, 2, 3, 4, 5, 8, 10, 50, 100)][:7]
        for row, quantity in enumerate(QUANTITIES):
            ax = axes[row, column]
            for heads, color in zip(shown, COLORS, strict=False):
                runs = chosen(results, regime, "softmax", heads)
                times, values = smoothed(runs, quantity)
                style = {"color": PALETTE[color]}
                ax.plot(times, np.exp(np.log(values).mean(axis=0)), label=f"H = {heads}", **style)
                low, high = np.quantile(values, MIDDLE, axis=0)
                ax.fill_between(times, low, high, alpha=0.15, linewidth=0, **style)
            ax.set_yscale("log")
            ax.set_xlabel("time t")
            ax.set_title(f"{regime} heads: {QUANTITIES[quantity]}")
    axes[0, 0].legend(ncols=2, loc="lower left")
    axes[1, 1].legend(ncols=2, loc="upper right")
    axes[0, 0].set_ylabel("softmax flow")
    axes[1, 0].set_ylabel("softmax flow")
    return figure


def smoothed(runs: list[dict], quantity: str, bins: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Averages over ``bins`` intervals of time, from the carried integrals: one row a run."""
    times = runs[0]["times"]
    edges = np.unique(np.linspace(0, times.size - 1, bins + 1).astype(int))
    row = INTEGRALS.index(quantity)
    values = [np.diff(r["integrals"][row, edges]) / np.diff(times[edges]) for r in runs]
    return (times[edges[1:]] + times[edges[:-1]]) / 2, np.maximum(values, 1e-16)


def draw_heads(results: Results, quick: bool) -> Figure:
    """Time averages against the number of heads, both regimes, both flows, both quantities."""
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    axes = figure.subplots(1, 2)
    found = fits(results, quick)
    lines = [
        ("softmax", "metric_speed_squared"),
        ("softmax", "slope_squared"),
        ("gradient", "slope_squared"),
    ]
    labels = (
        r"softmax flow, $\int\hat b|v_{soft}|^2$",
        "softmax flow, $G^2$",
        r"gradient flow, $G^2 = \int\hat b|v_{grad}|^2$",
    )
    for ax, (regime, setting) in zip(axes, settings(quick).items(), strict=True):
        for window, dash in zip(setting["windows"][::-1], ("-", "--", ":"), strict=False):
            for line, label, color in zip(lines, labels, COLORS[::2], strict=False):
                values = averages(results, regime, *line, setting["draws"], window)
                mean = np.array([draws.mean() for draws in values])
                ends = np.array([np.quantile(draws, MIDDLE) for draws in values]).T
                if regime == REGIMES[0]:
                    label = f"{label}: {found[line].exponent:.2f}"
                elif len(setting["windows"]) > 1:
                    label = f"to T = {window:g}" if line == lines[0] else None
                ax.errorbar(
                    list(setting["draws"]),
                    mean,
                    np.maximum([mean - ends[0], ends[1] - mean], 0),
                    fmt="o" + dash,
                    color=PALETTE[color],
                    capsize=2,
                    linewidth=1.2,
                    label=label,
                )
        ax.set_yscale("log")
        ax.set_xlabel("number of heads H")
        ax.set_title(regime)
        ax.legend(fontsize=8)
    axes[0].set_xscale("log")
    axes[0].set_ylabel("average over the second half")
    return figure


def draw_tokens(results: Results, quick: bool) -> Figure:
    """Snapshots of the first seed: longitude and height of the tokens."""
    setting = settings(quick)["ornstein-uhlenbeck"]
    counts = [h for h in setting["draws"] if h in (1, 4, 10, 100)]
    keep = setting["run"]["keep"]
    figure = Figure(figsize=(2.4 * len(keep), 1.7 * len(counts) + 0.5), layout="constrained")
    axes = figure.subplots(len(counts), len(keep), sharex=True, sharey=True, squeeze=False)
    for row, heads in enumerate(counts):
        for velocity, color, marker in (("gradient", "green", "s"), ("softmax", "vermilion", "x")):
            run = chosen(results, "ornstein-uhlenbeck", velocity, heads)[0]
            for column, points in enumerate(run["kept_points"]):
                longitude = np.degrees(np.arctan2(points[:, 1], points[:, 0]))
                axes[row, column].plot(
                    longitude,
                    points[:, 2],
                    marker,
                    color=PALETTE[color],
                    markersize=3,
                    fillstyle="none",
                    label=f"{velocity} flow",
                )
                axes[0, column].set_title(f"t = {run['kept_times'][column]:g}")
        axes[row, 0].set_ylabel(f"H = {heads}\nheight z")
    for ax in axes[-1]:
        ax.set_xlabel("longitude [degrees]")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=2)
    return figure


def main() -> None:
    parsed = arguments(__doc__, "regimes", 64)
    results = sweep(article_flow, members(parsed.quick, parsed.seeds), parsed)
    write_table(parsed.out / "averages.csv", table(results, parsed.quick))
    write_table(parsed.out / "balances.csv", balances(results, parsed.quick))
    ranges = ((1, np.inf),) if parsed.quick else ((1, np.inf), (1, 20), (5, np.inf))
    rows = [
        {
            "flow": flow,
            "quantity": quantity,
            "from": least,
            "to": largest,
            "exponent": law.exponent,
            "low": law.interval[0],
            "high": law.interval[1],
        }
        for least, largest in ranges
        for (flow, quantity), law in fits(results, parsed.quick, least, largest).items()
    ]
    write_table(parsed.out / "exponents.csv", rows)
    draw(results, parsed.quick, parsed.out)


def draw(results: Results, quick: bool, out: Path) -> None:
    with mpl.rc_context(STYLE):
        save_figure(draw_time(results, quick), out / "regimes_time.png")
        save_figure(draw_heads(results, quick), out / "regimes_heads.png")
        save_figure(draw_tokens(results, quick), out / "regimes_tokens.png")


if __name__ == "__main__":
    main()
