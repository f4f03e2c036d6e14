"""The limit of many Ornstein-Uhlenbeck heads: energy, gradient, slope and flows against it.

python experiments/many_heads.py [--quick] [--out DIR] [--seeds K] [--workers N]
"""

from __future__ import annotations

import jko
import matplotlib as mpl
import numpy as np
from jko import sphere
from jko.attention.weights import OrnsteinUhlenbeck
from jko.diagnostics.limits import ManyHeads, fit_power_law
from jko.plotting import PALETTE, save_figure
from jko.plotting.style import STYLE
from jko.transport.distance import wasserstein
from matplotlib.figure import Figure
from scipy.integrate import solve_ivp

from _common import arguments, article_cloud, sweep, ticks, write_table

LAW = ManyHeads()
LATE = 20.0
LABELS = {
    "energy": r"$|E_H - E_\infty|$, initial cloud",
    "gradient": r"$\|p_H - p_\infty\|$, initial cloud",
    "slope": r"$G_H^2$, stationary cloud of the limit",
    "speed": r"$\int\hat b|v_{soft}|^2$, stationary cloud of the limit",
    "gradient_flow": r"gradient flow, $W_2$ to that of the limit",
    "softmax_flow": r"softmax flow, $W_2$ to that of the limit",
}
COLORS = ("blue", "sky", "green", "orange", "black", "vermilion")


def stationary_cloud(tokens: int) -> jko.TokenCloud:
    """Where the gradient of the late limit energy vanishes (its tokens repel each other)."""
    start = jko.TokenCloud(sphere.fibonacci_nodes(tokens))

    def velocity(t: float, y: np.ndarray) -> np.ndarray:
        cloud = jko.TokenCloud.normalized(y.reshape(tokens, 3))
        return -LAW.gradient(cloud.points, cloud, LATE).ravel()

    end = solve_ivp(velocity, (0, 3000), start.points.ravel(), "LSODA", rtol=1e-9, atol=1e-12)
    return jko.TokenCloud.normalized(end.y[:, -1].reshape(tokens, 3))


def statics(
    *, seed: int, counts: list[int], tokens: int, stationary: list[list[float]]
) -> dict[str, np.ndarray]:
    """Independent heads of the late law, on the initial cloud and on the stationary one."""
    rng = np.random.default_rng([seed, 11])
    cloud, rest = article_cloud(tokens, 3, seed), jko.TokenCloud(stationary)
    limit_energy = LAW.energy(cloud, LATE)
    limit_gradient = LAW.gradient(cloud.points, cloud, LATE)
    found = {name: [] for name in ("energy", "gradient", "slope", "speed")}
    for count in counts:
        z = rng.standard_normal((count, 3, 3))
        standard = (z + z.transpose(0, 2, 1)) / 2
        heads = jko.Heads(LAW.mean(LATE) * np.eye(3) + LAW.spread(LATE) * standard)
        model = jko.AttentionModel(heads)
        gap = model.gradient(cloud.points, cloud, 0.0) - limit_gradient
        found["energy"].append(abs(model.energy(cloud, 0.0) - limit_energy))
        found["gradient"].append(np.sqrt((gap**2).sum(axis=1).mean()))
        found["slope"].append(model.slope_squared(rest, 0.0))
        found["speed"].append(model.metric_speed_squared(rest, 0.0, "softmax"))
    return found


def flows(
    *, seed: int, counts: list[int], tokens: int, horizon: float, limit_heads: int
) -> dict[str, np.ndarray]:
    """Flows of sampled paths against those of a smooth path of very many heads of the same law."""
    cloud = article_cloud(tokens, 3, seed)
    limit = jko.AttentionModel(LAW.path(limit_heads, np.random.default_rng([seed, 12])))
    found = {}
    for velocity in ("gradient", "softmax"):
        span = (0.0, horizon)
        end = jko.particle_flow(limit, cloud, span, velocity, rtol=1e-6, t_eval=[horizon]).final
        distances = []
        for count in counts:
            rng = np.random.default_rng([seed, count, 13])
            path = OrnsteinUhlenbeck(jko.Heads.gaussian(count, 3, rng), horizon=horizon, rng=rng)
            curve = jko.particle_flow(
                jko.AttentionModel(path),
                cloud,
                span,
                velocity,
                "heun",
                step=0.02,
                t_eval=[horizon],
            )
            distances.append(wasserstein(curve.final, end))
        found[f"{velocity}_flow"] = np.array(distances)
    return found


def draw(counts: dict, values: dict, laws: dict) -> Figure:
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    axes = figure.subplots(1, 2)
    for (name, label), color in zip(LABELS.items(), COLORS, strict=True):
        ax = axes[1] if name.endswith("flow") else axes[0]
        heads, rows = counts[name], values[name]
        style = dict(color=PALETTE[color])
        ax.loglog(heads, rows.mean(axis=0), "o-", label=f"{label}: {laws[name]}", **style)
    for ax in axes:
        ax.set_xlabel("number of heads H")
        ax.legend(fontsize=8)
    axes[0].set_title(f"heads of the law at t = {LATE:g}")
    axes[1].set_title("flows from octahedral tokens")
    axes[1].set_ylabel("distance [rad]")
    ticks(axes[1], (0.1, 0.2, 0.3, 0.5, 0.7), "y")
    return figure


def main() -> None:
    parsed = arguments(__doc__, "many_heads", 4)
    quick = parsed.quick
    tokens, horizon, limit_heads = (18, 0.2, 40) if quick else (40, 5.0, 300)
    counts = [4, 16, 64] if quick else [1, 3, 10, 30, 100, 300, 1000]
    flow_counts = [1, 4] if quick else [1, 2, 5, 10, 20, 50, 100]
    rest = stationary_cloud(tokens)
    residual = np.abs(LAW.gradient(rest.points, rest, LATE)).max()
    seeds = range(parsed.seeds)
    fixed = sweep(
        statics,
        {
            f"seed={s}": dict(seed=s, counts=counts, tokens=tokens, stationary=rest.points.tolist())
            for s in range(3 if quick else 160)
        },
        parsed,
        "statics",
    )
    moving = sweep(
        flows,
        {
            f"seed={s}": dict(
                seed=s, counts=flow_counts, tokens=tokens, horizon=horizon, limit_heads=limit_heads
            )
            for s in seeds
        },
        parsed,
        "flows",
    )
    values, heads, laws, rows = {}, {}, {}, []
    for name in LABELS:
        source, heads[name] = (moving, flow_counts) if name.endswith("flow") else (fixed, counts)
        values[name] = np.array([run[name] for run in source.values()])
        first = 0 if name.endswith("flow") or quick else 2
        laws[name] = fit_power_law(heads[name][first:], values[name][:, first:])
        law = laws[name]
        rows.append(
            dict(
                quantity=name,
                exponent=law.exponent,
                low=law.interval[0],
                high=law.interval[1],
                first=float(values[name].mean(axis=0)[0]),
                last=float(values[name].mean(axis=0)[-1]),
            )
        )
    write_table(parsed.out / "many_heads.csv", rows)
    print(f"largest gradient of the limit energy at its stationary cloud: {residual:.1e}")
    with mpl.rc_context(STYLE):
        save_figure(draw(heads, values, laws), parsed.out / "many_heads.png")


if __name__ == "__main__":
    main()
