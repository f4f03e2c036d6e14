"""Claims about stability: in the initial cloud, the heads, the number of tokens and of heads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import sphere
from ..attention.heads import Heads
from ..attention.model import AttentionModel
from ..attention.weights import Interpolated, Perturbed
from ..diagnostics.limits import ManyHeads, PowerLaw, fit_power_law
from ..diagnostics.stability import (
    GrowthStudy,
    energy_gap,
    flow_gaps,
    growth_study,
    least_energy,
    movement_gaps,
    sampling_gaps,
    weight_decay,
)
from ..measures import TokenCloud
from ..runs.flow import particle_flow
from .card import Claim, short
from .laboratory import Laboratory, measured

__all__ = [
    "defect_identity",
    "gamma_convergence",
    "groenwall",
    "many_heads",
    "mean_field",
    "special_cases",
]

Array = NDArray[np.float64]

RATE_TOLERANCE = 0.1
MEAN_FIELD_TOLERANCE = 0.15
SPECIAL_TOLERANCE = 1e-10
IDENTITY_TOLERANCE = 1e-9


@measured
def growth_studies(laboratory: Laboratory) -> list[GrowthStudy]:
    """Perturbed clouds of several sizes, both signs and flows, weak and full heads."""
    tokens, horizon = (40, 2.0) if laboratory.extent.full_limits else (10, 0.2)
    cloud = TokenCloud.octahedral(tokens, 0.05, 0)
    heads = Heads.gaussian(3, 3, 1).matrices
    times = np.linspace(0, horizon, 9)
    return [
        growth_study(
            AttentionModel(Heads(scale * heads), sign), cloud, times, (1e-4, 1e-2, 1e-1), velocity
        )
        for scale in (0.1, 1.0)
        for sign in (1, -1)
        for velocity in ("gradient", "softmax")
    ]


def groenwall(laboratory: Laboratory) -> Claim:
    """Perturbations of the initial cloud grow no faster than the a-priori rate."""
    studies = growth_studies(laboratory)
    shares = [float(study.steepest.max() / study.a_priori) for study in studies]
    rates = [float(study.steepest.max()) for study in studies]
    bounds = [study.a_priori for study in studies]
    return Claim(
        key="groenwall",
        claim="W₂(μₜ, νₜ) grows at most at the a-priori rate L_x + L_μ of Grönwall's inequality.",
        measured=(
            f"{len(studies)} cases, perturbations of 1e−4 to 0.1 rad: growth rates up to "
            f"{max(rates):.3g}, constants {short(min(bounds), 1)} to {short(max(bounds), 1)}; largest "
            f"quotient {short(max(shares), 1)}"
        ),
        expected="every quotient below 1",
        holds=max(shares) < 1 and min(study.slack for study in studies) > 0,
        how_known="theorem; the constant is far from sharp for strong heads",
        numbers={"largest_quotient": max(shares), "largest_rate": max(rates)},
    )


@measured
def perturbation_orders(laboratory: Laboratory) -> dict[str, PowerLaw]:
    """Orders in eps for heads ``A A^T/2 + eps B B^T/2`` and for weight decay of rate eps."""
    full = laboratory.extent.full_limits
    tokens, nodes, horizon, draws = (40, 300, 1.0, 3) if full else (10, 80, 0.3, 1)
    epsilons = 0.05 / 2.0 ** np.arange(4)
    found: dict[str, list[Array]] = {}
    for seed in range(draws):
        rng = np.random.default_rng([seed, 21])
        a, b = rng.standard_normal((2, 3, 3, 3))
        base, direction = (Heads(m @ m.transpose(0, 2, 1) / 2) for m in (a, b))
        model = AttentionModel(base)
        perturbed = [AttentionModel(Perturbed(base, direction, float(e))) for e in epsilons]
        decayed = [AttentionModel(weight_decay(model.path, float(e))) for e in epsilons]
        cloud, support = TokenCloud.octahedral(tokens, 0.2, rng), sphere.fibonacci_nodes(nodes)
        zero = least_energy(model, 0.0, support).energy
        rows = {
            "energy": np.array([energy_gap(model, m, 0.0, support).bound for m in perturbed]),
            "least energy": np.array(
                [abs(least_energy(m, 0.0, support).energy - zero) for m in perturbed]
            ),
            "gradient flow": flow_gaps(model, perturbed, cloud, horizon),
            "softmax flow": flow_gaps(model, perturbed, cloud, horizon, "softmax"),
            "JKO": movement_gaps(model, perturbed, cloud, horizon, 0.1),
            "weight decay": flow_gaps(model, decayed, cloud, horizon),
        }
        for name, row in rows.items():
            found.setdefault(name, []).append(row)
    return {name: fit_power_law(epsilons, np.array(rows)) for name, rows in found.items()}


def gamma_convergence(laboratory: Laboratory) -> Claim:
    """Energies, least energies, flows and minimizing movements converge with the heads, at order 1."""
    orders = {name: law.exponent for name, law in perturbation_orders(laboratory).items()}
    text = ", ".join(f"{name} {order:.3f}" for name, order in orders.items())
    return Claim(
        key="gamma_convergence",
        claim=(
            "As perturbed heads Θ + εΘ' tend to Θ, energies (uniformly), least energies, flows and "
            "minimizing movements converge, at first order; weight decay of rate ε likewise."
        ),
        measured=f"orders in ε: {text}",
        expected=f"1.0 ± {RATE_TOLERANCE:g} each",
        holds=max(abs(order - 1) for order in orders.values()) <= RATE_TOLERANCE,
        how_known="Γ-convergence theorem; measured orders",
        numbers=orders,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class SamplingStudy:
    """Exponents in the number of tokens at the start and at the end, and the growth between."""

    before: PowerLaw
    after: PowerLaw
    growth: float


@measured
def sampling_study(laboratory: Laboratory) -> SamplingStudy:
    """Sampled tokens on the circle against an equidistributed reference, gradient flow."""
    full = laboratory.extent.full_limits
    fine, repeats = (1000, 10) if full else (200, 6)
    counts = [25, 50, 100, 200, 400] if full else [10, 20, 40, 80]
    rng = np.random.default_rng(22)
    model = AttentionModel(Heads(Heads.gaussian(3, 2, rng).matrices / 2))
    reference = _circle_cloud((np.arange(fine) + 0.5) / fine)
    samples = [_circle_cloud(rng.uniform(size=n)) for _ in range(repeats) for n in counts]
    before, after = sampling_gaps(model, reference, samples, 1.0)
    before, after = before.reshape(repeats, -1), after.reshape(repeats, -1)
    return SamplingStudy(
        before=fit_power_law(counts, before),
        after=fit_power_law(counts, after),
        growth=float((after / before).max()),
    )


def _circle_cloud(u: Array) -> TokenCloud:
    """A smooth density: the image of the uniform law on [0, 1]."""
    angle = 2 * np.pi * u + 0.8 * np.sin(2 * np.pi * u)
    return TokenCloud(np.stack([np.cos(angle), np.sin(angle)], axis=1))


def mean_field(laboratory: Laboratory) -> Claim:
    """Flows of n sampled tokens converge to the mean-field flow at the rate of sampling."""
    study = sampling_study(laboratory)
    errors = [abs(law.exponent + 0.5) for law in (study.before, study.after)]
    return Claim(
        key="mean_field",
        claim=(
            "Flows of n sampled tokens converge to the mean-field flow as fast as the samples to their "
            "law (circle: W₂ ~ n^(−1/2))."
        ),
        measured=(
            f"exponent {study.before} at the start and {study.after} at T = 1; "
            f"W₂ grew at most by a factor {study.growth:.2f}"
        ),
        expected=f"−0.5 ± {MEAN_FIELD_TOLERANCE:g} at both times",
        holds=max(errors) <= MEAN_FIELD_TOLERANCE,
        how_known="stability in the initial measure; measured against a fine reference",
        numbers={"before": study.before.exponent, "after": study.after.exponent,
                 "growth": study.growth},
    )


def special_cases(laboratory: Laboratory) -> Claim:
    """Single-head and autonomous models are recovered by the many-headed, time-dependent code."""
    rng = np.random.default_rng(23)
    single = Heads.gaussian(1, 3, rng)
    copies = Heads(np.repeat(single.matrices, 5, axis=0), rng.dirichlet(np.ones(5)))
    layers = Interpolated([0.0, 1.0], np.stack([copies.matrices] * 2), copies.weights)
    cloud = TokenCloud.octahedral(24, 0.05, rng)
    models = {"equal heads": AttentionModel(copies), "constant path": AttentionModel(layers)}
    differences: dict[str, float] = {}
    for velocity in ("gradient", "softmax"):
        base = particle_flow(AttentionModel(single), cloud, (0.0, 0.5), velocity, rtol=1e-11)
        for name, model in models.items():
            other = particle_flow(model, cloud, (0.0, 0.5), velocity, rtol=1e-11)
            gap = float(np.abs(base.final.points - other.final.points).max())
            differences[f"{name}, {velocity}"] = gap
    defect = max(abs(model.defect_rate(cloud, 0.0)) for model in models.values())
    worst = max(differences.values())
    return Claim(
        key="special_cases",
        claim=(
            "Equal heads and constant paths give exactly the single-head, autonomous flow, without "
            "defect."
        ),
        measured=f"largest difference of the flows {short(worst)}, defect {short(defect)}",
        expected=f"at most {short(SPECIAL_TOLERANCE)}",
        holds=worst <= SPECIAL_TOLERANCE and defect <= SPECIAL_TOLERANCE,
        how_known="identity, checked",
        numbers=differences | {"defect": defect},
    )


def defect_identity(laboratory: Laboratory) -> Claim:
    """v_soft − v_grad is minus the covariance over heads of 1/b and grad b; its cost is O(spread⁴)."""
    rng = np.random.default_rng(24)
    cloud = TokenCloud.octahedral(24, 0.05, rng)
    mean = Heads.gaussian(1, 3, rng).matrices / 2
    direction = Heads.gaussian(1, 3, rng).matrices * np.array([1.0, -1.0])[:, None, None]
    spreads = 0.01 * 2.0 ** np.arange(4)
    rates, errors = [], []
    for spread in spreads:
        model = AttentionModel(Heads(mean + spread * direction))
        fields = model.own_fields(cloud, 0.0)
        b, w = fields.head_mobility, fields.heads.weights
        slope = b[..., None] * fields.log_mobility_gradient
        inverse = 1 / b - np.einsum("h,hn->n", w, 1 / b)
        covariance = np.einsum("h,hn,hnd->nd", w, inverse, slope)
        gap = fields.softmax_velocity - fields.gradient_velocity
        errors.append(float(np.abs(gap + covariance).max() / np.abs(gap).max()))
        rates.append(model.defect_rate(cloud, 0.0))
    law = fit_power_law(spreads, rates)
    return Claim(
        key="defect_identity",
        claim=(
            "v_soft − v_grad = −Cov_h(1/b_h, ∇b_h), so the defect vanishes like the fourth power of the "
            "spread of the heads."
        ),
        measured=(
            f"largest relative error of the identity {short(max(errors), 1)}; exponent "
            f"{law.exponent:.3f} for spreads {spreads[0]:g} to {spreads[-1]:g}"
        ),
        expected=f"at most {short(IDENTITY_TOLERANCE)}; 4.0 ± {RATE_TOLERANCE:g}",
        holds=max(errors) <= IDENTITY_TOLERANCE and abs(law.exponent - 4) <= RATE_TOLERANCE,
        how_known="identity, checked; expansion",
        numbers={"error": max(errors), "exponent": law.exponent},
    )


def many_heads(laboratory: Laboratory) -> Claim:
    """Energy and gradient of H Ornstein-Uhlenbeck heads tend to the closed-form limit like H^(-1/2)."""
    counts = [10, 30, 100, 300, 1000] if laboratory.extent.full_limits else [10, 30, 100, 300]
    draws, t, law = 100, 20.0, ManyHeads()
    cloud = TokenCloud.octahedral(24, 0.05, 0)
    rng = np.random.default_rng(25)
    limit_energy, limit_gradient = law.energy(cloud, t), law.gradient(cloud.points, cloud, t)
    energy, gradient = np.empty((2, draws, len(counts)))
    for row in range(draws):
        for column, count in enumerate(counts):
            standard = Heads.gaussian(count, 3, rng).matrices / 2
            model = AttentionModel(Heads(law.mean(t) * np.eye(3) + law.spread(t) * standard))
            energy[row, column] = abs(model.energy(cloud, 0.0) - limit_energy)
            gap = model.gradient(cloud.points, cloud, 0.0) - limit_gradient
            gradient[row, column] = np.sqrt(np.einsum("nd,nd->n", gap, gap).mean())
    laws = {"energy": fit_power_law(counts, energy), "gradient": fit_power_law(counts, gradient)}
    worst = max(abs(found.exponent + 0.5) for found in laws.values())
    return Claim(
        key="many_heads",
        claim=(
            "Energy and gradient of H Ornstein-Uhlenbeck heads tend to the closed-form limit of many "
            "heads like H^(−1/2)."
        ),
        measured=", ".join(f"{name}: exponent {found}" for name, found in laws.items()),
        expected=f"−0.5 ± {RATE_TOLERANCE:g}",
        holds=worst <= RATE_TOLERANCE,
        how_known="central limit theorem; closed form",
        numbers={name: found.exponent for name, found in laws.items()},
    )
