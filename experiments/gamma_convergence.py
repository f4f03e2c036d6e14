"""Perturbed heads: energies, least energies, flows and movements converge, and how fast.

python experiments/gamma_convergence.py [--quick] [--out DIR] [--seeds K] [--workers N]
"""

from __future__ import annotations

import jko
import matplotlib as mpl
import numpy as np
from jko import sphere
from jko.attention.weights import Perturbed
from jko.diagnostics.limits import fit_power_law
from jko.diagnostics.stability import (
    energy_gap,
    flow_gaps,
    least_energy,
    movement_gaps,
    weight_decay,
)
from jko.plotting import PALETTE, save_figure
from jko.plotting.style import STYLE
from matplotlib.figure import Figure

from _common import arguments, sweep, write_table

LABELS = {
    "energy": "energy, uniformly in the measure (bound)",
    "attained": "energy, largest difference found",
    "least": "least energy over measures on nodes",
    "flow_gradient": "gradient flow, $W_2$ at T",
    "flow_softmax": "softmax flow, $W_2$ at T",
    "movement": "minimizing movement, $W_2$ at T",
    "weight_decay": "gradient flow under weight decay, $W_2$ at T",
}
MARKERS = "oPs^vDX"
COLORS = ("blue", "sky", "black", "green", "vermilion", "purple", "orange")


def measure(
    *, seed: int, epsilons: list[float], tokens: int, nodes: int, horizon: float, step: float
) -> dict[str, np.ndarray]:
    """All distances for heads ``A A^T / 2 + eps B B^T / 2``: the energies are convex throughout."""
    rng = np.random.default_rng([seed, 6])
    a, b = rng.standard_normal((2, 3, 3, 3))
    base = jko.Heads(a @ a.transpose(0, 2, 1) / 2)
    direction = jko.Heads(b @ b.transpose(0, 2, 1) / 2)
    model = jko.AttentionModel(base)
    perturbed = [jko.AttentionModel(Perturbed(base, direction, eps)) for eps in epsilons]
    decayed = [jko.AttentionModel(weight_decay(model.path, eps)) for eps in epsilons]
    cloud = jko.TokenCloud.octahedral(tokens, 0.2, rng)
    support = sphere.fibonacci_nodes(nodes)
    gaps = [energy_gap(model, other, 0.0, support, [cloud]) for other in perturbed]
    least = least_energy(model, 0.0, support)
    others = [least_energy(other, 0.0, support) for other in perturbed]
    return {
        "epsilon": epsilons,
        "energy": [gap.bound for gap in gaps],
        "attained": [gap.attained for gap in gaps],
        "least": [abs(other.energy - least.energy) for other in others],
        "least_gap": max(found.gap for found in (least, *others)),
        "flow_gradient": flow_gaps(model, perturbed, cloud, horizon, "gradient"),
        "flow_softmax": flow_gaps(model, perturbed, cloud, horizon, "softmax"),
        "movement": movement_gaps(model, perturbed, cloud, horizon, step),
        "weight_decay": flow_gaps(model, decayed, cloud, horizon, "gradient"),
    }


def draw(epsilons: np.ndarray, means: dict[str, np.ndarray], orders: dict[str, str]) -> Figure:
    figure = Figure(figsize=(8.8, 4.8), layout="constrained")
    ax = figure.subplots()
    for (name, label), marker, color in zip(LABELS.items(), MARKERS, COLORS, strict=True):
        if name == "attained":  # coincides with the bound
            continue
        text = f"{label}: {orders[name]}"
        ax.loglog(
            epsilons, means[name], marker + "-", color=PALETTE[color], fillstyle="none", label=text
        )
    ax.set_xlabel(r"size $\epsilon$ of the perturbation")
    ax.set_ylabel("difference to the unperturbed")
    figure.legend(loc="outside upper center", fontsize=8.5, ncols=2)
    return figure


def main() -> None:
    parsed = arguments(__doc__, "gamma_convergence", 4)
    size = dict(tokens=40, nodes=400, horizon=1.0, step=0.1)
    count = 7
    if parsed.quick:
        size, count = dict(tokens=12, nodes=60, horizon=0.3, step=0.1), 3
    epsilons = (0.1 / 2.0 ** np.arange(count)).tolist()
    members = {f"seed={s}": dict(seed=s, epsilons=epsilons, **size) for s in range(parsed.seeds)}
    results = sweep(measure, members, parsed)
    rows, means, orders = [], {}, {}
    for name in LABELS:
        values = np.array([run[name] for run in results.values()])
        law = fit_power_law(epsilons, values)
        means[name], orders[name] = values.mean(axis=0), f"order {law.exponent:.3f}"
        rows.append(
            dict(
                quantity=name,
                order=law.exponent,
                low=law.interval[0],
                high=law.interval[1],
                largest=means[name][0],
                smallest=means[name][-1],
            )
        )
    write_table(parsed.out / "orders.csv", rows)
    print("largest gap of a least energy:", max(float(r["least_gap"]) for r in results.values()))
    with mpl.rc_context(STYLE):
        save_figure(draw(np.array(epsilons), means, orders), parsed.out / "gamma_convergence.png")


if __name__ == "__main__":
    main()
