"""What the experiments share: their command line, the progress bar, one flow as a sweep member."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jko
import numpy as np
from jko.diagnostics.limits import article_model
from jko.runs.sweep import run_sweep
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

INTEGRALS = ("energy_time_derivative", "metric_speed_squared", "slope_squared", "defect")


def arguments(description: str, name: str, seeds: int) -> argparse.Namespace:
    """``--quick``, ``--out``, ``--seeds``, ``--workers``."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, in seconds")
    parser.add_argument("--out", type=Path, default=Path("runs") / name, help="directory")
    parser.add_argument("--seeds", type=int, default=None, help=f"draws (default {seeds})")
    parser.add_argument(
        "--workers", type=int, default=None, help="processes; 0: this one (default: all)"
    )
    parsed = parser.parse_args()
    if parsed.seeds is None:
        parsed.seeds = 1 if parsed.quick else seeds
    if parsed.quick and parsed.workers is None:
        parsed.workers = 0
    parsed.out.mkdir(parents=True, exist_ok=True)
    return parsed


def sweep(
    function: Callable[..., Mapping[str, Any]],
    members: Mapping[str, Mapping[str, Any]],
    parsed: argparse.Namespace,
    part: str = "members",
) -> dict[str, dict[str, np.ndarray]]:
    """Run what is not stored yet, with a bar; results are kept in the folder ``part``."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task(f"{parsed.out.name}, {part}", total=len(members))

        def show(name: str, done: int, total: int) -> None:
            bar.update(task, completed=done)

        out = parsed.out / part
        return run_sweep(function, members, out, workers=parsed.workers, progress=show)


def article_cloud(tokens: int, dim: int, seed: int) -> jko.TokenCloud:
    """The article's initial tokens: near five angles on the circle, else the cross-polytope."""
    rng = np.random.default_rng([seed, 0])
    if dim == 2:
        return jko.TokenCloud.pentagonal(tokens, 0.05, rng)
    return jko.TokenCloud.cross_polytope(tokens, dim, 0.05, rng)


def article_flow(
    *,
    regime: str,
    heads: int,
    seed: int,
    velocity: str,
    tokens: int,
    horizon: float,
    saved: int,
    dim: int = 3,
    sign: int = 1,
    step: float | None = None,
    rtol: float = 1e-7,
    keep: Sequence[float] = (),
) -> dict[str, np.ndarray]:
    """One flow of the article's setting: energy, integrals at ``saved`` + 1 times, some clouds.

    Sampled paths take Heun steps of size ``step``, smooth ones DOP853.
    """
    model = article_model(
        regime, heads, dim, horizon, np.random.default_rng([seed, heads, 1]), sign
    )
    times = np.linspace(0, horizon, saved + 1)
    method = {"rtol": rtol} if step is None else {"method": "heun", "step": step}
    curve = jko.particle_flow(
        model, article_cloud(tokens, dim, seed), (0, horizon), velocity, t_eval=times, **method
    )
    if not curve.success:
        raise RuntimeError(curve.message)
    kept = [int(np.argmin(np.abs(times - t))) for t in keep]
    return {
        "times": times,
        "energy": curve.energy,
        "integrals": np.array([curve.integrals[name] for name in INTEGRALS]),
        "kept_times": times[kept],
        "kept_points": curve.points[kept],
        "final": curve.points[-1],
    }


def mean_rates(result: Mapping[str, np.ndarray], start: float, end: float) -> dict[str, float]:
    """Time averages over [start, end] from the carried integrals."""
    times = result["times"]
    first, last = (int(np.argmin(np.abs(times - t))) for t in (start, end))
    change = result["integrals"][:, last] - result["integrals"][:, first]
    return dict(zip(INTEGRALS, change / (times[last] - times[first]), strict=True))


def ticks(ax: Axes, values: Sequence[float], axis: str = "x") -> None:
    """Ticks at these values of a logarithmic axis, written as plain numbers."""
    chosen = ax.xaxis if axis == "x" else ax.yaxis
    chosen.set_major_locator(FixedLocator(list(values)))
    chosen.set_major_formatter("{x:g}")
    chosen.set_minor_locator(NullLocator())


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A CSV file of the rows, and the same on the screen."""
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        cells = (
            f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in row.items()
        )
        print("  ".join(cells))
