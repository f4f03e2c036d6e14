"""Special cases recovered by the many-headed code, and the defect against head spread and number.

python experiments/defect.py [--quick] [--out DIR] [--seeds K] [--workers N]
"""

from __future__ import annotations

import jko
import matplotlib as mpl
import numpy as np
from jko.attention.weights import FromFunction, Interpolated
from jko.diagnostics.limits import fit_power_law
from jko.plotting import PALETTE, save_figure
from jko.plotting.style import STYLE
from matplotlib.figure import Figure

from _common import arguments, article_cloud, sweep, write_table


def special_cases(*, seed: int, tokens: int, horizon: float) -> dict[str, np.ndarray]:
    """Differences that ought to vanish: equal heads against one, constant paths against frozen."""
    rng = np.random.default_rng([seed, 7])
    single = jko.Heads.gaussian(1, 3, rng)
    copies = jko.Heads(np.repeat(single.matrices, 5, axis=0), rng.dirichlet(np.ones(5)))
    cloud = article_cloud(tokens, 3, seed)
    one, many = jko.AttentionModel(single), jko.AttentionModel(copies)
    layers = Interpolated(
        [0.0, horizon], np.repeat(copies.matrices[None], 2, axis=0), copies.weights
    )
    constant = [jko.AttentionModel(p) for p in (layers, FromFunction(lambda t: copies))]
    span = (0.0, horizon)

    def ends(model: jko.AttentionModel, velocity: str) -> np.ndarray:
        return jko.particle_flow(model, cloud, span, velocity, rtol=1e-11).points[-1]

    def step(model: jko.AttentionModel) -> np.ndarray:
        return jko.proximal_step(model, cloud, 0.0, 0.05).cloud.points

    base, moved = ends(one, "gradient"), step(one)
    return {
        "energy": abs(one.energy(cloud, 0.0) - many.energy(cloud, 0.0)) / one.energy(cloud, 0.0),
        "softmax_is_gradient": np.abs(base - ends(one, "softmax")).max(),
        "equal_heads_gradient": np.abs(base - ends(many, "gradient")).max(),
        "equal_heads_softmax": np.abs(base - ends(many, "softmax")).max(),
        "equal_heads_step": np.abs(moved - step(many)).max(),
        "equal_heads_defect": many.defect_rate(cloud, 0.0),
        "constant_paths": max(np.abs(ends(m, "gradient") - base).max() for m in constant),
        "constant_steps": max(np.abs(step(m) - moved).max() for m in constant),
        "constant_work": max(abs(m.energy_time_derivative(cloud, 0.0)) for m in constant),
    }


def identity_error(model: jko.AttentionModel, cloud: jko.TokenCloud) -> float:
    r"""Largest error of ``v_soft - v_grad = -sign Cov_h(1/b_h, grad b_h)``, relative."""
    fields = model.own_fields(cloud, 0.0)
    weights, b = fields.heads.weights, fields.head_mobility
    slope = b[..., None] * fields.log_mobility_gradient
    inverse = 1 / b - np.einsum("h,hn->n", weights, 1 / b)
    covariance = np.einsum("h,hn,hnd->nd", weights, inverse, slope)
    gap = fields.softmax_velocity - fields.gradient_velocity
    return float(np.abs(gap + model.sign * covariance).max() / np.abs(gap).max())


def measure(*, seed: int, tokens: int, spreads: list[float], counts: list[int]) -> dict:
    """Defect rates at the initial cloud: two heads of growing spread; more and more heads."""
    rng = np.random.default_rng([seed, 8])
    cloud = article_cloud(tokens, 3, seed)
    mean = jko.Heads.gaussian(1, 3, rng).matrices / 2
    pair = jko.Heads.gaussian(1, 3, rng).matrices * np.array([1.0, -1.0])[:, None, None]
    by_spread, errors, shares = [], [], []
    for spread in spreads:
        model = jko.AttentionModel(jko.Heads(mean + spread * pair))
        by_spread.append(model.defect_rate(cloud, 0.0))
        errors.append(identity_error(model, cloud))
    draws = jko.Heads.gaussian(max(counts), 3, rng).matrices
    for count in counts:
        model = jko.AttentionModel(jko.Heads(draws[:count]))
        defect = model.defect_rate(cloud, 0.0)
        loss = model.metric_speed_squared(cloud, 0.0, "softmax") + model.slope_squared(cloud, 0.0)
        shares.append(defect / (loss / 2))
        if count > 1:
            errors.append(identity_error(model, cloud))
    return {"by_spread": by_spread, "shares": shares, "identity_error": max(errors)}


def draw(
    spreads: list[float],
    by_spread: np.ndarray,
    counts: list[int],
    shares: np.ndarray,
    exponent: float,
) -> Figure:
    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for row in by_spread:
        left.loglog(spreads, row, "o-", color=PALETTE["blue"], alpha=0.5)
    guide = by_spread.mean(axis=0)[0] * (np.array(spreads) / spreads[0]) ** 4
    left.loglog(spreads, guide, "--", color="black", label="slope 4")
    left.set_title(f"two heads: exponent {exponent:.2f} at small spread")
    left.set_xlabel("spread of the heads")
    left.set_ylabel("defect rate")
    left.legend()
    for row in shares:
        right.semilogx(counts, 100 * row, color=PALETTE["vermilion"], alpha=0.3)
    right.semilogx(counts, 100 * np.median(shares, axis=0), "o-", color="black", label="median")
    right.set_xlabel("number of heads H (Z + Z$^T$)")
    right.set_ylabel("defect [% of ½ speed² + ½ slope²]")
    right.legend()
    return figure


def main() -> None:
    parsed = arguments(__doc__, "defect", 8)
    tokens = 24 if parsed.quick else 100
    seeds = range(parsed.seeds)
    cases = sweep(
        special_cases,
        {
            f"seed={s}": dict(seed=s, tokens=tokens, horizon=0.2 if parsed.quick else 1.0)
            for s in seeds
        },
        parsed,
        "special",
    )
    names = list(next(iter(cases.values())))
    write_table(
        parsed.out / "special_cases.csv",
        [dict(difference=n, largest=max(float(r[n]) for r in cases.values())) for n in names],
    )
    spreads = (0.01 * 2.0 ** np.arange(7)).tolist()
    counts = [1, 2, 3, 5, 10] if parsed.quick else [1, 2, 3, 5, 10, 20, 50, 100, 200]
    results = sweep(
        measure,
        {f"seed={s}": dict(seed=s, tokens=tokens, spreads=spreads, counts=counts) for s in seeds},
        parsed,
        "defect",
    )
    by_spread = np.array([run["by_spread"] for run in results.values()])
    shares = np.array([run["shares"] for run in results.values()])
    law = fit_power_law(spreads[:4], by_spread[:, :4])
    error = max(float(run["identity_error"]) for run in results.values())
    write_table(
        parsed.out / "defect.csv",
        [
            dict(heads=c, median_share=float(v))
            for c, v in zip(counts, np.median(shares, axis=0), strict=True)
        ],
    )
    print(f"exponent in the spread {law}; largest relative error of the identity {error:.1e}")
    with mpl.rc_context(STYLE):
        save_figure(
            draw(spreads, by_spread, counts, shares, law.exponent), parsed.out / "defect.png"
        )


if __name__ == "__main__":
    main()
