"""How far time averages under few Ornstein-Uhlenbeck heads spread, and what explicit steps add.

A plain simulation that uses nothing of the library but its sweeps and figures: the squared speed
of the softmax flow, averaged over the second half of [0, 20], path by path, with Heun steps along
exactly sampled heads and with explicit Euler steps for tokens and heads (Euler-Maruyama).

    python experiments/explicit_steps.py [--quick] [--out DIR] [--seeds K] [--workers N]
"""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from jko.plotting import PALETTE, save_figure
from jko.plotting.style import STYLE
from matplotlib.figure import Figure

from _common import arguments, sweep, ticks, write_table

VARIANCE = 2.0
NOISE = 0.05

#: Another explicit simulation of the article's setting: means over four paths.
SIMULATED = {1: 0.57, 2: 0.21, 5: 0.091, 10: 0.053}
SIMULATED_PATHS = 4
RESAMPLES = 200_000

HEUN, EULER = "Heun, exact heads", "Euler-Maruyama"
COLORS = {HEUN: "blue", EULER: "vermilion"}


@dataclass(frozen=True)
class Scheme:
    """Step, seed, and the paths for every number of heads."""

    step: float
    seed: int
    paths: dict[int, int]


SCHEMES = {
    HEUN: Scheme(0.05, 7, {1: 512, 2: 512, 5: 256, 10: 256}),
    EULER: Scheme(0.1, 9, {1: 512, 2: 384, 5: 192, 10: 160}),
}


def velocity(points: np.ndarray, matrices: np.ndarray) -> tuple[np.ndarray, float]:
    """The softmax velocity (n, 3) of equally weighted tokens, and its squared metric speed."""
    kernel = np.exp(np.einsum("nd,hde->hne", points, matrices) @ points.T)
    mobility = kernel.mean(axis=-1)
    mean = kernel @ points / len(points)
    gradient = np.einsum("hnd,hed->hne", mean, matrices)
    gradient -= np.einsum("hne,ne->hn", gradient, points)[..., None] * points
    speed = -(gradient / mobility[..., None]).mean(axis=0)
    effective = 1 / (1 / mobility).mean(axis=0)
    return speed, float(np.mean(effective * (speed * speed).sum(axis=-1)))


def normalize(points: np.ndarray) -> np.ndarray:
    return points / np.linalg.norm(points, axis=-1, keepdims=True)


def next_heads(
    matrices: np.ndarray, step: float, exact: bool, rng: np.random.Generator
) -> np.ndarray:
    """One step of ``dD = (I - D) dt + sqrt(2) dW_sym``, exact in law or by Euler-Maruyama."""
    noise = rng.standard_normal(matrices.shape)
    noise = (noise + noise.swapaxes(1, 2)) / 2
    identity = np.eye(3)
    if exact:
        spread = np.sqrt(VARIANCE * (1 - np.exp(-2 * step)) / 2)
        return identity + np.exp(-step) * (matrices - identity) + spread * noise
    return matrices + step * (identity - matrices) + np.sqrt(VARIANCE * step) * noise


def time_averages(
    *, scheme: str, heads: int, paths: int, seed: int, step: float, tokens: int, horizon: float
) -> dict[str, np.ndarray]:
    """Averages over the second half of [0, horizon], one a path."""
    rng = np.random.default_rng([seed, heads])
    vertices = np.concatenate([np.eye(3), -np.eye(3)])[np.arange(tokens) % 6]
    clouds = normalize(vertices + NOISE * rng.standard_normal((paths, tokens, 3)))
    count = round(horizon / step)
    averages = np.empty(paths)
    for path, points in enumerate(clouds):
        z = rng.standard_normal((heads, 3, 3))
        matrices = z + z.swapaxes(1, 2)
        squares = np.empty(count)
        for k in range(count):
            new = next_heads(matrices, step, scheme == HEUN, rng)
            speed, squares[k] = velocity(points, matrices)
            if scheme == HEUN:
                other, square = velocity(normalize(points + step * speed), new)
                speed, squares[k] = (speed + other) / 2, (squares[k] + square) / 2
            points, matrices = normalize(points + step * speed), new
        averages[path] = squares[count // 2 :].mean()
    return {"averages": averages}


def table(values: dict[tuple[str, int], np.ndarray]) -> list[dict]:
    """Mean and spread over paths, and how often four paths are as far off as the simulation."""
    rows = []
    rng = np.random.default_rng(0)
    for (scheme, heads), paths in values.items():
        mean, deviation = paths.mean(), paths.std(ddof=1)
        few = rng.choice(paths, (RESAMPLES, SIMULATED_PATHS)).mean(axis=1)
        low, median, high = np.quantile(paths, (0.05, 0.5, 0.95))
        off = abs(SIMULATED[heads] - mean)
        rows.append(
            {
                "scheme": scheme,
                "heads": heads,
                "paths": paths.size,
                "mean": float(mean),
                "standard_error": float(deviation / paths.size**0.5),
                "deviation": float(deviation),
                "skewness": float(np.mean((paths - mean) ** 3) / deviation**3),
                "least": float(paths.min()),
                "quantile_5": float(low),
                "median": float(median),
                "quantile_95": float(high),
                "largest": float(paths.max()),
                "simulated": SIMULATED[heads],
                "share_as_far": float(np.mean(np.abs(few - mean) >= off)),
            }
        )
    return rows


def draw(values: dict[tuple[str, int], np.ndarray]) -> Figure:
    """H times the averages: single paths as dots, the middle 95 % of means of four as bars."""
    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    ax = figure.subplots()
    rng = np.random.default_rng(0)
    for (scheme, heads), paths in values.items():
        side = 0.93 if scheme == HEUN else 1.08
        color = PALETTE[COLORS[scheme]]
        places = heads * side * np.exp(rng.uniform(-0.05, 0.05, paths.size))
        ax.plot(places, heads * paths, ".", color=color, alpha=0.2, markersize=3)
        few = heads * rng.choice(paths, (RESAMPLES, SIMULATED_PATHS)).mean(axis=1)
        mean, (low, high) = heads * paths.mean(), np.quantile(few, (0.025, 0.975))
        first = heads == min(count for _, count in values)
        ax.errorbar(
            heads * side,
            mean,
            [[mean - low], [high - mean]],
            fmt="o",
            color=color,
            markeredgecolor="white",
            capsize=4,
            label=f"{scheme}, step {SCHEMES[scheme].step:g}: mean, 95 % of means of four"
            if first
            else None,
        )
    counts = sorted({heads for _, heads in values})
    simulated = [heads * SIMULATED[heads] for heads in counts]
    ax.plot(counts, simulated, "kD", fillstyle="none", label="explicit simulation, 4 paths")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ticks(ax, counts)
    ticks(ax, (0.1, 0.2, 0.5, 1), "y")
    ax.set_xlabel("number of heads H")
    ax.set_ylabel(r"H $\times$ average of $\int\hat b|v_{soft}|^2 d\mu$")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=8)
    return figure


def main() -> None:
    parsed = arguments(__doc__, "explicit_steps", 512)
    counts, size = (1, 2, 5, 10), dict(tokens=100, horizon=20.0)
    if parsed.quick:
        counts, size = (1, 2), dict(tokens=12, horizon=2.0)
        parsed.seeds = max(parsed.seeds, 3)
    members, keys = {}, {}
    for name, scheme in SCHEMES.items():
        for heads in counts:
            member = f"{name.split(',')[0]},H={heads}"
            keys[name, heads] = member
            members[member] = dict(
                scheme=name,
                heads=heads,
                paths=min(parsed.seeds, scheme.paths[heads]),
                seed=scheme.seed,
                step=scheme.step,
                **size,
            )
    results = sweep(time_averages, members, parsed)
    values = {key: results[member]["averages"] for key, member in keys.items()}
    write_table(parsed.out / "averages.csv", table(values))
    with mpl.rc_context(STYLE):
        save_figure(draw(values), parsed.out / "explicit_steps.png")


if __name__ == "__main__":
    main()
