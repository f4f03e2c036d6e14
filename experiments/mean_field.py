"""Mean-field limit: flows of n sampled tokens against a fine reference, on the circle and on S^2.

python experiments/mean_field.py [--quick] [--out DIR] [--seeds K] [--workers N]
"""

from __future__ import annotations

import jko
import matplotlib as mpl
import numpy as np
from jko import sphere
from jko.diagnostics.limits import fit_power_law
from jko.diagnostics.stability import sampling_gaps
from jko.plotting import PALETTE, save_figure
from jko.plotting.style import STYLE
from matplotlib.figure import Figure

from _common import arguments, sweep, ticks, write_table


def circle_law(u: np.ndarray) -> jko.TokenCloud:
    """A smooth density on the circle: the image of the uniform law on [0, 1]."""
    angle = 2 * np.pi * u + 0.8 * np.sin(2 * np.pi * u) + 0.3 * np.cos(4 * np.pi * u)
    return jko.TokenCloud(np.stack([np.cos(angle), np.sin(angle)], axis=1))


def sphere_law(directions: np.ndarray) -> jko.TokenCloud:
    """A smooth density on S^2: the image of the uniform law under ``x -> A x / |A x|``."""
    return jko.TokenCloud.normalized(directions @ np.diag([1.0, 0.6, 1.6]))


def sample(dim: int, n: int, rng: np.random.Generator) -> jko.TokenCloud:
    if dim == 2:
        return circle_law(rng.uniform(size=n))
    return sphere_law(jko.TokenCloud.uniform(n, 3, rng).points)


def measure(
    *, dim: int, velocity: str, seed: int, counts: list[int], reference: int, horizon: float
) -> dict[str, np.ndarray]:
    """Distances at time 0 and at the horizon of one sample of every size."""
    rng = np.random.default_rng([seed, dim, 9])
    heads = jko.Heads.gaussian(3, dim, np.random.default_rng([dim, 10]))
    model = jko.AttentionModel(jko.Heads(heads.matrices / 2))
    fine = (
        circle_law((np.arange(reference) + 0.5) / reference)
        if dim == 2
        else sphere_law(sphere.fibonacci_nodes(reference))
    )
    clouds = [sample(dim, n, rng) for n in counts]
    before, after = sampling_gaps(model, fine, clouds, horizon, velocity, rtol=1e-6)
    return {"before": before, "after": after}


def draw(counts: list[int], results: dict, dims: tuple, laws: dict) -> Figure:
    figure = Figure(figsize=(9.6, 3.9), layout="constrained")
    axes = figure.subplots(1, len(dims), sharey=True, squeeze=False)[0]
    for ax, dim in zip(axes, dims, strict=True):
        for velocity, color in (("gradient", "green"), ("softmax", "vermilion")):
            runs = select(results, dim, velocity)
            for moment, dash in (("before", ":"), ("after", "-")):
                values = np.array([run[moment] for run in runs])
                start = moment == "before"  # the same samples for both flows
                if start and velocity == "softmax":
                    continue
                label = "t = 0" if start else f"{velocity} flow, t = T"
                label += f": {laws[dim, velocity, moment].exponent:.2f}"
                shade = PALETTE["black" if start else color]
                ax.loglog(counts, values.mean(axis=0), "o" + dash, color=shade, label=label)
        ax.set_title("circle" if dim == 2 else "sphere $S^2$")
        ax.set_xlabel("number of tokens n")
        ticks(ax, counts)
        ax.legend(fontsize=8)
    ticks(axes[0], (0.1, 0.2, 0.3, 0.4), "y")
    axes[0].set_ylabel("$W_2$ to the reference [rad]")
    return figure


def select(results: dict, dim: int, velocity: str) -> list[dict]:
    return [run for name, run in results.items() if name.startswith(f"d={dim},{velocity},")]


def main() -> None:
    parsed = arguments(__doc__, "mean_field", 4)
    counts = [25, 50, 100, 200, 400]
    references = {2: 1000, 3: 1500}
    horizon = 1.0
    if parsed.quick:
        counts, references, horizon = [10, 20, 40], {2: 100, 3: 100}, 0.2
    members = {
        f"d={dim},{velocity},seed={seed}": dict(
            dim=dim, velocity=velocity, seed=seed, counts=counts, reference=fine, horizon=horizon
        )
        for dim, fine in references.items()
        for velocity in ("gradient", "softmax")
        for seed in range(parsed.seeds)
    }
    results = sweep(measure, members, parsed)
    rows, laws = [], {}
    for dim in references:
        for velocity in ("gradient", "softmax"):
            for moment in ("before", "after"):
                values = np.array([run[moment] for run in select(results, dim, velocity)])
                law = laws[dim, velocity, moment] = fit_power_law(counts, values)
                rows.append(
                    dict(
                        dim=dim,
                        flow=velocity,
                        moment=moment,
                        exponent=law.exponent,
                        low=law.interval[0],
                        high=law.interval[1],
                        smallest=float(values.mean(axis=0)[-1]),
                    )
                )
    write_table(parsed.out / "mean_field.csv", rows)
    with mpl.rc_context(STYLE):
        figure = draw(counts, results, tuple(references), laws)
        save_figure(figure, parsed.out / "mean_field.png")


if __name__ == "__main__":
    main()
