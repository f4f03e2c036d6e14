"""Claims about single steps: descent, optimal plans, certificates, the discrete identity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .. import sphere
from ..attention.model import AttentionModel
from ..diagnostics.balance import EnergyBalance, energy_balance
from ..measures import TokenCloud
from ..runs.curve import Curve
from ..runs.movement import minimizing_movement
from ..steps.result import StepRecord
from ..transport.cost import SourceCost
from ..transport.plan import optimal_plan
from .card import Claim, short
from .claims_model import sample_points
from .laboratory import STEP_SIZES, Laboratory, measured

__all__ = ["certificates", "descent", "discrete_identity", "optimal_plans"]

Array = NDArray[np.float64]

#: Relative tolerance of a plan's cost against the network simplex.
PLAN_TOLERANCE = 1e-9

#: Costs below this (squared distances of a few ulp) are rounding.
COST_FLOOR = 1e-28

#: Nodes of the brute-force search for counterexamples to a proof.
NODES = 2000

#: A node must be better by this much (relative) to count: below it, rounding decides.
RESOLUTION = 1e-12

IDENTITY_TOLERANCE = 1e-8


def _all_runs(laboratory: Laboratory) -> Iterator[Curve]:
    yield from laboratory.certified_runs().values()
    for name in ("sphere_one_head", "sphere_three_heads"):
        for count in laboratory.extent.refinements:
            yield laboratory.movement(name, count)


def descent(laboratory: Laboratory) -> Claim:
    """Every step decreases the objective and the energy."""
    steps = [step for curve in _all_runs(laboratory) for step in curve.steps]
    objective = np.array([step.objective - step.energy_before for step in steps])
    energy = np.array([step.energy - step.energy_before for step in steps])
    norm = max(step.certificate.gradient_norm for step in steps)
    converged = sum(step.success for step in steps)
    return Claim(
        key="descent",
        claim=(
            "Every step decreases the objective, and the energy at its own time: Φ ≤ E(μₖ, tₖ₊₁)."
        ),
        measured=(
            f"{len(steps)} steps, {converged} stationary (largest relative gradient "
            f"{short(norm)}); "
            f"largest change of the objective {short(objective.max(), 1)}, of the energy "
            f"{short(energy.max(), 1)}"
        ),
        expected="no change above zero, all steps stationary",
        holds=bool(objective.max() <= 0 and energy.max() <= 0 and converged == len(steps)),
        how_known="theorem, checked on every step",
        numbers={
            "steps": len(steps),
            "largest_objective_change": float(objective.max()),
            "largest_energy_change": float(energy.max()),
            "largest_gradient_norm": norm,
        },
    )


def _start(model: AttentionModel, curve: Curve, k: int) -> tuple[TokenCloud, SourceCost]:
    """The cloud a step starts from, and its ground cost."""
    cloud = curve.cloud(k)
    mobility = model.effective_mobility(cloud.points, cloud, float(curve.times[k]))
    return cloud, SourceCost(cloud.points, mobility)


def _plan_excess(curve: Curve) -> list[float]:
    """Relative excess of every step's transport cost over the network simplex's optimum."""
    assert curve.model is not None
    excess = []
    for k, record in enumerate(curve.steps):
        cloud, cost = _start(curve.model, curve, k)
        best = optimal_plan(cost.matrix(curve.points[k + 1]), cloud.weights, cloud.weights).cost
        excess.append(abs(record.distance_squared - best) / max(best, COST_FLOOR))
    return excess


def optimal_plans(laboratory: Laboratory) -> Claim:
    """The plan of every step is optimal."""
    runs = laboratory.certified_runs().values()
    excess = np.concatenate([_plan_excess(curve) for curve in runs])
    reported = [step.certificate for curve in _all_runs(laboratory) for step in curve.steps]
    largest = max(c.plan_gap for c in reported)
    potentials = sum(c.plan_checked_by == "potentials" for c in reported)
    return Claim(
        key="optimal_plans",
        claim="The transport plan of every step is optimal.",
        measured=(
            f"{excess.size} plans asked again of the network simplex: largest relative excess "
            f"{short(excess.max(), 1)}; {len(reported)} certificates ({potentials} by potentials): "
            f"largest gap {short(largest, 1)}"
        ),
        expected=f"at most {short(PLAN_TOLERANCE)}",
        holds=bool(excess.max() <= PLAN_TOLERANCE and largest <= PLAN_TOLERANCE),
        how_known="linear programming, an independent solver",
        numbers={
            "largest_excess": float(excess.max()),
            "largest_reported_gap": largest,
            "plans": float(excess.size),
        },
    )


def _counterexamples(curve: Curve) -> tuple[int, int]:
    """Tokens of the proven steps, and for how many of them a node is a better position."""
    assert curve.model is not None
    tokens = found = 0
    for k, record in enumerate(curve.steps):
        if record.certificate.optimality != "proven":
            continue
        _, cost = _start(curve.model, curve, k)
        new = curve.cloud(k + 1)
        nodes = sample_points(new, NODES)
        values = _token_values(curve.model, cost, new, record, nodes)
        own = _own_values(curve.model, cost, new, record)
        better = values.min(axis=1) < own - RESOLUTION * np.maximum(np.abs(own), 1)
        tokens += better.size
        found += int(better.sum())
    return tokens, found


def _token_values(
    model: AttentionModel, cost: SourceCost, new: TokenCloud, record: StepRecord, nodes: Array
) -> Array:
    """``c(x_i, z)/(2 tau) + V(z)`` for every token and node."""
    potential = model.first_variation(nodes, new, record.energy_time)
    return cost.matrix(nodes) / (2 * record.step) + potential[None]


def _own_values(
    model: AttentionModel, cost: SourceCost, new: TokenCloud, record: StepRecord
) -> Array:
    potential = model.first_variation(new.points, new, record.energy_time)
    own = cost.mobility * sphere.distance(cost.points, new.points) ** 2
    return np.asarray(own / (2 * record.step) + potential)


def certificates(laboratory: Laboratory) -> Claim:
    """No step's certificate fails, and brute force finds no counterexample to a proof."""
    runs = laboratory.certified_runs()
    steps = [step for curve in runs.values() for step in curve.steps]
    counts = Counter(step.certificate.optimality for step in steps)
    checks = [_counterexamples(curve) for curve in runs.values()]
    tokens, found = (sum(column) for column in zip(*checks, strict=True))
    gap = max(step.certificate.optimality_gap for step in steps)
    undecided = len(steps) - counts["proven"] - counts["searched"]
    return Claim(
        key="certificates",
        claim="Every step is a global minimum for each token: proven, or searched without success.",
        measured=(
            f"{len(steps)} steps of size {', '.join(f'{s:g}' for s in STEP_SIZES)}: "
            f"{counts['proven']} proven, {counts['searched']} searched, {counts['failed']} failed; "
            f"largest gap {short(gap)}; {NODES} nodes tried for each of {tokens} proven tokens: "
            f"{found} better"
        ),
        expected="none failed, no counterexample to a proof",
        holds=undecided == 0 and found == 0,
        how_known="interval proof per token, brute-force search",
        numbers={
            "proven": counts["proven"],
            "searched": counts["searched"],
            "failed": counts["failed"],
            "counterexamples": found,
            "largest_gap": gap,
        },
    )


@measured
def identity_balances(laboratory: Laboratory) -> dict[float, EnergyBalance]:
    """The discrete energy balance with three oscillating heads, by step size."""
    model, cloud = laboratory.oscillating()
    balances = {}
    for step in STEP_SIZES:
        end = step * laboratory.extent.identity_steps
        balances[step] = energy_balance(minimizing_movement(model, cloud, (0.0, end), step))
    return balances


def discrete_identity(laboratory: Laboratory) -> Claim:
    """The discrete energy-dissipation identity closes to rounding at any step size."""
    closures = {
        step: balance.relative_closure for step, balance in identity_balances(laboratory).items()
    }
    text = ", ".join(f"{short(value)} at step {step:g}" for step, value in closures.items())
    return Claim(
        key="discrete_identity",
        claim=(
            "The discrete energy-dissipation identity (De Giorgi interpolation) closes at any "
            "step size."
        ),
        measured=(
            f"summed residual over {laboratory.extent.identity_steps} steps, 3 oscillating heads: "
            f"{text} (relative to the energy's variation)"
        ),
        expected=f"at most {short(IDENTITY_TOLERANCE)} at every size",
        holds=all(value <= IDENTITY_TOLERANCE for value in closures.values()),
        how_known="identity to rounding",
        numbers={f"closure_{step:g}": value for step, value in closures.items()},
    )
