"""The proximal step on tokens: against brute force, under its symmetries, in every status."""

from __future__ import annotations

import logging
from itertools import permutations

import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jko import AttentionModel, Heads, TokenCloud, proximal_step, sphere, weights
from jko.steps.particles import solve_tokens
from jko.steps.problem import Anchor, StepProblem
from jko.transport.cost import COSTS, SourceCost, ground_cost
from scipy.optimize import linprog, minimize


def brute_force(model, cloud, step, starts):
    """Multi-start BFGS on ambient coordinates; the plan is the best permutation."""
    n, d = cloud.points.shape
    mobility = model.effective_mobility(cloud.points, cloud, 0)
    heads, a, orders = model.path(0), cloud.weights, list(permutations(range(n)))

    def objective(flat):
        y = sphere.normalize(flat.reshape(n, d))
        cost = mobility[:, None] * sphere.distance(cloud.points[:, None], y[None]) ** 2
        transport = min(sum(a[i] * cost[i, p[i]] for i in range(n)) for p in orders)
        kernel = np.exp(np.einsum("id,hde,je->hij", y, heads.matrices, y))
        energy = model.sign * np.einsum("h,hij,i,j", heads.weights, kernel, a, a) / 2
        return transport / (2 * step) + energy

    rng = np.random.default_rng(0)
    first = [cloud.points, *(rng.standard_normal((n, d)) for _ in range(starts))]
    runs = [minimize(objective, x.ravel(), options={"gtol": 1e-9}) for x in first]
    best = min(runs, key=lambda run: run.fun)
    return best.fun, sphere.normalize(best.x.reshape(n, d))


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("step", [0.1, 0.5, 3.0])
def test_against_brute_force(n, step, convex_problem):
    """Convex energies: the step is the global minimum over clouds."""
    for seed in range(2):
        model, cloud = convex_problem(seed, n, 3, 2)
        result = proximal_step(model, cloud, 0, step)
        value, points = brute_force(model, cloud, step, starts=4)
        assert result.objective == pytest.approx(value, abs=1e-11)
        moved = [
            sphere.distance(points[list(p)], result.cloud.points) for p in permutations(range(n))
        ]
        assert min(d.max() for d in moved) < 1e-6


@pytest.mark.parametrize("sign", [1, -1])
def test_indefinite_heads_small_step_against_brute_force(sign, random_problem):
    for seed in (20, 21, 30):
        model, cloud = random_problem(seed, 2 + seed // 30, heads=2, sign=sign, size=1.5)
        result = proximal_step(model, cloud, 0, 0.1)
        value, _ = brute_force(model, cloud, 0.1, starts=0)
        assert result.objective == pytest.approx(value, abs=1e-11)


def recomputed(model, cloud, result, cost="source"):
    """Objective of a result from its cloud and plan alone."""
    matrix = ground_cost(cost, model, cloud, result.time).matrix(result.cloud.points)
    transport = (result.plan.toarray() * matrix).sum()
    energy = model.energy(result.cloud, result.energy_time)
    return transport, energy, transport / (2 * result.step) + energy, matrix


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dim", [2, 3, 5, 10])
def test_the_result_is_consistent(cost, sign, dim, random_problem):
    base, cloud = random_problem(dim, 12, dim, 3, sign, weighted=True)
    model = AttentionModel(weights.Oscillating(base.path(0)), sign)
    result = proximal_step(model, cloud, 0.3, 0.2, cost)
    transport, energy, objective, matrix = recomputed(model, cloud, result, cost)
    assert result.distance_squared == pytest.approx(transport, rel=1e-11)
    assert result.energy == pytest.approx(energy, rel=1e-12)
    assert result.objective == pytest.approx(objective, rel=1e-12)
    assert result.energy_before == pytest.approx(model.energy(cloud, 0.5), rel=1e-13)
    assert result.objective < result.energy_before
    assert (result.time, result.step, result.energy_time) == (0.3, 0.2, 0.5)
    best = ot.emd2(cloud.weights, cloud.weights, matrix)
    assert transport <= best * (1 + 1e-9)
    plan = result.plan.toarray()
    np.testing.assert_allclose(plan.sum(axis=1), cloud.weights, atol=1e-14)
    np.testing.assert_allclose(plan.sum(axis=0), cloud.weights, atol=1e-14)
    certificate = result.certificate
    assert certificate.plan_gap <= 1e-9
    assert certificate.gradient_norm <= 1e-10
    assert result.success
    assert result.message == result.status.value
    np.testing.assert_array_equal(result.cloud.weights, cloud.weights)


@pytest.mark.parametrize("cost", COSTS)
def test_the_result_is_stationary(cost, random_problem):
    """Central differences of the recomputed objective in random directions of single tokens."""
    model, cloud = random_problem(1, 8, weighted=True)
    result = proximal_step(model, cloud, 0, 0.3, cost)
    target = ground_cost(cost, model, cloud, 0)
    rng, h, y = np.random.default_rng(0), 1e-4, result.cloud.points
    rows = np.arange(8)

    def objective(points):
        moved = TokenCloud(points, cloud.weights)
        transport = cloud.weights @ target.pairs(rows, points)
        return transport / 0.6 + model.energy(moved, 0)

    for token in range(8):
        v = np.zeros_like(y)
        v[token] = sphere.project(y[token], rng.standard_normal(3))
        up, down = objective(sphere.exp(y, h * v)), objective(sphere.exp(y, -h * v))
        assert up > result.objective
        assert down > result.objective
        assert abs(up - down) / (2 * h) < 1e-8


def test_costs_agree_to_second_order(random_problem):
    """The mobility's variation along the move changes points by O(step^2), midpoint by O(step^3)."""
    model, cloud = random_problem(0, 15)
    steps, gaps = np.array([0.04, 0.02, 0.01]), {"source": [], "midpoint": []}
    for step in steps:
        reference = proximal_step(model, cloud, 0, step, "geodesic").cloud.points
        for cost in gaps:
            points = proximal_step(model, cloud, 0, step, cost).cloud.points
            gaps[cost].append(sphere.distance(points, reference).max())
    for cost, order in (("source", 2), ("midpoint", 3)):
        slope = np.polyfit(np.log(steps), np.log(gaps[cost]), 1)[0]
        assert slope == pytest.approx(order, abs=0.2)


def test_small_steps_follow_the_gradient_velocity(random_problem):
    for sign in (1, -1):
        model, cloud = random_problem(3, 10, sign=sign)
        step = 1e-5
        moved = sphere.log(cloud.points, proximal_step(model, cloud, 0, step).cloud.points) / step
        np.testing.assert_allclose(moved, model.velocity(cloud, 0), atol=2e-3)


def test_the_energy_time_can_be_chosen(random_problem):
    base, cloud = random_problem(4, 10)
    model = AttentionModel(weights.Oscillating(base.path(0)))
    default = proximal_step(model, cloud, 0.2, 0.1)
    same = proximal_step(model, cloud, 0.2, 0.1, energy_time=0.2 + 0.1)
    other = proximal_step(model, cloud, 0.2, 0.1, energy_time=0.2)
    np.testing.assert_array_equal(default.cloud.points, same.cloud.points)
    assert other.energy == pytest.approx(model.energy(other.cloud, 0.2), rel=1e-13)
    assert sphere.distance(default.cloud.points, other.cloud.points).max() > 1e-3


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.integers(2, 4), st.sampled_from([1, -1]), st.sampled_from(COSTS))
def test_equivariance(seed, dim, sign, cost):
    """Rotated heads and tokens, in another order, take the rotated step."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((2, dim, dim))
    heads = Heads.symmetrized(z)
    points, a = TokenCloud.uniform(7, dim, rng).points, rng.dirichlet(np.full(7, 5.0))
    q = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    order = rng.permutation(7)
    turned = Heads.symmetrized(q @ heads.matrices @ q.T)
    one = proximal_step(AttentionModel(heads, sign), TokenCloud(points, a), 0, 0.1, cost)
    moved = TokenCloud.normalized(points[order] @ q.T, a[order])
    two = proximal_step(AttentionModel(turned, sign), moved, 0, 0.1, cost)
    assert two.objective == pytest.approx(one.objective, rel=1e-11)
    np.testing.assert_allclose(two.cloud.points, one.cloud.points[order] @ q.T, atol=1e-7)


@pytest.mark.parametrize("scale", [1e-3, 7.0, 1e4])
def test_scaling_mobility_and_step_together_changes_nothing(scale, random_problem):
    model, cloud = random_problem(6, 12, weighted=True)
    mobility = model.effective_mobility(cloud.points, cloud, 0)

    def solve(factor):
        cost = SourceCost(cloud.points, factor * mobility)
        problem = StepProblem(
            model=model,
            weights=cloud.weights,
            step=0.2 * factor,
            energy_time=0.0,
            anchors=(Anchor(cost),),
            start=cloud.points,
        )
        return solve_tokens(problem, 1e-10, 1000, "full")

    one, two = solve(1.0), solve(scale)
    np.testing.assert_allclose(two.at.points, one.at.points, atol=1e-9)
    assert two.at.value == pytest.approx(one.at.value, rel=1e-13)
    assert two.certificate.optimality == one.certificate.optimality


def test_relabelling_is_found_and_labels_follow_the_mass():
    """Tokens that repel each other on the circle may not trade places at a cost."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        model = AttentionModel(Heads.gaussian(2, 3, rng), -1)
        cloud = TokenCloud.uniform(12, 3, rng)
        result = proximal_step(model, cloud, 0, 0.5)
        if result.stats.plan_changes:
            break
    assert result.stats.plan_changes > 0
    plan = result.plan.toarray()
    np.testing.assert_allclose(plan, np.diag(cloud.weights), atol=1e-15)
    transport, _, objective, matrix = recomputed(model, cloud, result)
    assert transport <= ot.emd2(cloud.weights, cloud.weights, matrix) * (1 + 1e-9)
    assert objective == pytest.approx(result.objective, rel=1e-12)


def test_plans_split_mass_where_unequal_tokens_trade_places():
    """A light and a heavy token attract each other past one another; the plan is recomputed."""
    found = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        model = AttentionModel(Heads.gaussian(2, 3, rng), -1)
        cloud = TokenCloud(TokenCloud.uniform(6, 3, rng).points, rng.dirichlet(np.ones(6)))
        result = proximal_step(model, cloud, 0, 1.0)
        plan = result.plan.toarray()
        np.testing.assert_allclose(plan.sum(axis=1), cloud.weights, atol=1e-14)
        np.testing.assert_allclose(plan.sum(axis=0), cloud.weights, atol=1e-14)
        if result.plan.nnz == 6:
            continue
        found += 1
        assert result.plan.nnz <= 11
        transport, _, objective, matrix = recomputed(model, cloud, result)
        rows, columns = np.kron(np.eye(6), np.ones(6)), np.kron(np.ones(6), np.eye(6))
        both = np.r_[cloud.weights, cloud.weights]
        best = linprog(matrix.ravel(), A_eq=np.vstack([rows, columns])[:-1], b_eq=both[:-1]).fun
        assert transport == pytest.approx(best, rel=1e-8)
        assert objective == pytest.approx(result.objective, rel=1e-12)
        assert result.certificate.optimality != "proven"
        assert result.certificate.gradient_norm <= 1e-9
    assert found > 0


class TestTestParticles:
    """Tokens of weight zero."""

    def test_a_twin_moves_with_its_token(self, random_problem):
        for sign, dim in ((1, 3), (-1, 3), (1, 10)):
            model, cloud = random_problem(8, 7, dim, sign=sign)
            plain = proximal_step(model, cloud, 0, 0.05)
            points = np.vstack([cloud.points[2], cloud.points, cloud.points[5]])
            twins = TokenCloud(points, np.r_[0, cloud.weights, 0])
            result = proximal_step(model, twins, 0, 0.05)
            np.testing.assert_allclose(result.cloud.points[1:-1], plain.cloud.points, atol=1e-12)
            np.testing.assert_allclose(result.cloud.points[0], plain.cloud.points[2], atol=1e-8)
            np.testing.assert_allclose(result.cloud.points[-1], plain.cloud.points[5], atol=1e-8)
            assert result.objective == pytest.approx(plain.objective, rel=1e-13)
            assert result.plan.shape == (9, 9)
            np.testing.assert_allclose(result.plan.toarray().sum(axis=1), twins.weights, atol=1e-15)

    @pytest.mark.parametrize("cost", COSTS)
    def test_they_minimise_their_own_problem(self, cost, random_problem):
        model, cloud = random_problem(9, 6)
        test = TokenCloud.uniform(4, 3, 3).points
        mixed = TokenCloud(np.vstack([cloud.points, test]), np.r_[cloud.weights, np.zeros(4)])
        result = proximal_step(model, mixed, 0, 0.1, cost)
        target, y = ground_cost(cost, model, mixed, 0), result.cloud.points[6:]
        rows, nodes = np.arange(6, 10), sphere.fibonacci_nodes(4000)
        own = target.pairs(rows, y) / 0.2 + model.first_variation(y, result.cloud, 0)
        others = target.matrix(nodes)[6:] / 0.2 + model.first_variation(nodes, result.cloud, 0)
        assert (own <= others.min(axis=1) + 1e-12).all()

    def test_tiny_weights_are_the_limit(self, random_problem):
        model, cloud = random_problem(9, 6)
        extra = TokenCloud.uniform(1, 3, 3).points
        points = np.vstack([cloud.points, extra])
        moved = [
            proximal_step(model, TokenCloud(points, np.r_[cloud.weights * (1 - w), w]), 0, 0.1)
            for w in (0.0, 1e-12)
        ]
        np.testing.assert_allclose(moved[0].cloud.points, moved[1].cloud.points, atol=1e-8)


@pytest.mark.parametrize("certify", ["full", "local", "none"])
def test_certify_changes_what_is_known_not_the_step(certify, random_problem):
    model, cloud = random_problem(3, 20)
    result = proximal_step(model, cloud, 0, 0.02, certify=certify)
    full = proximal_step(model, cloud, 0, 0.02)
    np.testing.assert_allclose(result.cloud.points, full.cloud.points, atol=1e-12)
    assert result.certificate.plan_gap <= 1e-9
    if certify == "none":
        assert result.certificate.optimality not in ("proven", "searched")
        assert result.certificate.proven_tokens == 0


def test_the_library_is_silent(random_problem, capfd, caplog):
    model, cloud = random_problem(0)
    with caplog.at_level(logging.DEBUG):
        proximal_step(model, cloud, 0, 0.1)
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"step": 0}, ValueError, "step must be positive, got 0"),
        ({"step": -0.1}, ValueError, r"step must be positive, got -0\.1"),
        ({"step": np.nan}, ValueError, "step must be finite, got nan"),
        ({"step": "a"}, TypeError, "step must be a real number, got 'a'"),
        ({"t": np.inf}, ValueError, "t must be finite, got inf"),
        ({"cost": "exact"}, ValueError, "cost must be one of 'source'"),
        ({"solver": "magic"}, ValueError, "solver must be .*got 'magic'"),
        ({"support": np.eye(3)}, ValueError, "support must be None for solver='particles'"),
        ({"energy_time": np.nan}, ValueError, "energy_time must be finite, got nan"),
        ({"tolerance": 0}, ValueError, "tolerance must be positive, got 0"),
        ({"max_evaluations": 0}, ValueError, "max_evaluations must be at least 1, got 0"),
        ({"max_evaluations": 1.5}, TypeError, r"max_evaluations must be an integer, got 1\.5"),
        ({"certify": "yes"}, ValueError, "certify must be one of 'full', 'local', 'none'"),
    ],
)
def test_arguments_are_checked_before_any_work(
    arguments, error, message, random_problem, monkeypatch
):
    model, cloud = random_problem(0)
    call = {"t": 0.0, "step": 0.1, **arguments}
    monkeypatch.setattr(type(model.kernel), "sums", None)
    with pytest.raises(error, match=message):
        proximal_step(model, cloud, **call)
