"""Branch and bound, decision by decision: no cell may be dismissed that holds a better point."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, sphere
from jko.steps import branch
from jko.steps import certificate as certificate_module
from jko.steps.bounds import PotentialBounds
from jko.steps.particles import solve_tokens
from jko.steps.proximal import jko_problem

NODES = {2: sphere.circle_nodes(5000), 3: sphere.fibonacci_nodes(5000)}


def misplaced(seed):
    """A step problem begun from random points, so that tokens get caught in poor minima."""
    rng = np.random.default_rng(seed)
    dim, n, count = (int(rng.integers(*span)) for span in ((2, 4), (1, 6), (1, 4)))
    heads = Heads.gaussian(count, dim, rng)
    size = rng.uniform(1, 8) / heads.norms.max()
    model = AttentionModel(Heads(size * heads.matrices), int(rng.choice([1, -1])))
    cloud = TokenCloud.uniform(n, dim, rng)
    step = float(np.exp(rng.uniform(np.log(0.05), np.log(5))))
    return jko_problem(model, cloud, 0, step, 0.0).with_start(
        TokenCloud.uniform(n, dim, rng).points
    )


class Auditor:
    """Samples the cells that branch and bound dismisses."""

    def __init__(self, decide):
        self.decide, self.rng, self.checked = decide, np.random.default_rng(0), 0

    def __call__(self, problems, state, cells, token, cell, curvature):
        undecided = self.decide(problems, state, cells, token, cell, curvature)
        pairs = self.rng.permutation(np.flatnonzero(~undecided))[:400]
        token, vertices = token[pairs], cells.vertices[cell[pairs]]
        corners = vertices.shape[1]
        for _ in range(3):
            mix = self.rng.dirichlet(np.full(corners, 0.5), pairs.size)
            y = sphere.normalize(np.einsum("kc,kcd->kd", mix, vertices))
            potential = problems.fields(y, 0).first_variation
            angle = sphere.distance(state.source[token], y)
            value = 0.5 * state.stiffness[token] * angle**2 + potential
            target = state.value[token]
            lowest = target - state.gap[token] - 1e-12 * np.maximum(np.abs(target), 1)
            assert (value >= lowest).all()
        self.checked += pairs.size
        return undecided


def test_every_dismissed_cell_is_worse(monkeypatch):
    auditor = Auditor(branch._undecided)
    monkeypatch.setattr(branch, "_undecided", auditor)
    monkeypatch.setattr("jko.steps.particles.RESTARTS", 0)
    for seed in range(40):
        solve_tokens(misplaced(seed), 1e-10, 1000, "full")
    assert auditor.checked > 10_000


def test_poor_minima_are_found_out(monkeypatch):
    """Tokens at local minima that are not global are never proven, and mostly refuted."""
    monkeypatch.setattr("jko.steps.particles.RESTARTS", 0)
    outcomes = Counter()
    for seed in range(100, 180):
        problem = misplaced(seed)
        solution = solve_tokens(problem, 1e-10, 1000, "full")
        if not solution.coupling.identity:
            continue
        model, cost = problem.model, problem.anchors[0].cost
        y = TokenCloud(solution.at.points)
        nodes = NODES[y.dim]
        rows = np.arange(y.n)
        own = cost.pairs(rows, y.points) / (2 * problem.step)
        own = own + model.first_variation(y.points, y, 0)
        best = cost.matrix(nodes) / (2 * problem.step) + model.first_variation(nodes, y, 0)
        gap = np.maximum(own - best.min(axis=1), 0).mean()
        certificate = solution.certificate
        outcomes[certificate.optimality] += 1
        if certificate.optimality == "proven":
            assert gap <= certificate.optimality_gap + 1e-12 * max(1, np.abs(own).max())
        else:
            assert certificate.optimality == "failed"
            # the search reports what it found, which need not be all there is
            assert certificate.optimality_gap >= gap / 2
    assert outcomes["failed"] > 10
    assert outcomes["proven"] > 20


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_the_local_proof_is_the_documented_inequality(dim, random_problem, monkeypatch):
    """R_i, kappa_i and the gap recomputed from the formulas, at points that are not stationary."""
    model, cloud = random_problem(dim, 6, dim, 2, 1, 0.3)
    step, seen = 0.1, []
    plain = certificate_module.local_proof

    def spy(problems, at, value, bounds):
        gap, proven = plain(problems, at, value, bounds)
        seen.append((at, gap, proven))
        return gap, proven

    monkeypatch.setattr(certificate_module, "local_proof", spy)
    problem = jko_problem(model, cloud, 0, step, 0.0)
    for tolerance in (0.9, 1e-2, 1e-10):
        solve_tokens(problem, tolerance, 1000, "local")
    rows, x = np.arange(6), cloud.points
    for at, gap, proven in seen:
        y = TokenCloud(at.points)
        bounds = PotentialBounds.of_measure(y.points, y.weights, model.path(0), 1)
        mobility = problem.anchors[0].cost.mobility
        own = problem.anchors[0].cost.pairs(rows, y.points) / (2 * step)
        own = own + model.first_variation(y.points, y, 0)
        low = np.sqrt(2 * step * (own - bounds.lower) / mobility)
        near = 2 * step * bounds.lipschitz / mobility
        at_source = model.first_variation(x, y, 0)
        # this simple radius holds where the token lowered its own value
        radius = np.where(own <= at_source, np.minimum(low, near), low)
        shape = 1.0 if dim == 2 else radius / np.tan(radius)
        kappa = mobility * shape / step - bounds.concavity
        expected = (radius < (np.pi if dim == 2 else np.pi / 2)) & (kappa > 0)
        np.testing.assert_array_equal(proven, expected)
        gradient = model.gradient(y.points, y, 0) - mobility[:, None] / step * sphere.log(
            y.points, x
        )
        bound = (gradient**2).sum(axis=1) / (2 * kappa)
        np.testing.assert_allclose(gap[proven], bound[proven], rtol=1e-4, atol=1e-25)
    assert any(proven.any() for _, _, proven in seen)


@pytest.mark.parametrize("evaluations", [1000, 2, 1])
def test_nothing_is_better_in_the_safe_ball(evaluations, monkeypatch):
    """Whole balls around the tokens are dismissed, stationary or not; they are worth it."""
    found = []
    build = branch._TokenState.build.__func__

    def watched(cls, problems, *arguments):
        state = build(cls, problems, *arguments)
        found.append((problems, state))
        return state

    monkeypatch.setattr(branch._TokenState, "build", classmethod(watched))
    rng = np.random.default_rng(0)
    for seed in range(200, 240):
        solve_tokens(misplaced(seed), 1e-10, evaluations, "full")
    wider = []
    for problems, state in found:
        near = state.near
        assert (near.safe >= near.convex).all()
        wider.append(np.median(near.safe / np.maximum(near.convex, 1e-5)))
        lowest = state.value - near.gap - 1e-12 * np.maximum(np.abs(state.value), 1)
        for _ in range(20):
            direction = sphere.project(state.point, rng.standard_normal(state.point.shape))
            direction /= np.linalg.norm(direction, axis=1, keepdims=True)
            length = near.safe * rng.uniform(0, 1, near.safe.size) ** 0.5
            y = sphere.exp(state.point, length[:, None] * direction)
            angle = sphere.distance(state.source, y)
            potential = problems.fields(y, 0).first_variation
            assert (0.5 * state.stiffness * angle**2 + potential >= lowest).all()
    assert len(found) > 30
    assert np.median(wider) > 1.5


@pytest.mark.parametrize("slope", [0.0, 0.05, 0.2, 0.5])
def test_the_safe_ball_of_a_cubic(slope):
    """Without transport and with Hess V(y) = lowest, of Lipschitz constant T, the bound is a cubic."""
    lowest, third = 1.0, 4.0

    class Cubic:
        def third(self, mobility, radius):
            return np.full(1, third)

    point = np.array([[1.0, 0.0]])
    near = branch._neighbourhood(
        point, point, np.array([slope]), np.zeros(1), np.array([lowest]), np.ones((1, 1)), Cubic()
    )
    # - slope r + lowest r^2/2 - third r^3/6 = - gap
    roots = np.roots([-third / 6, lowest / 2, -slope, near.gap[0]])
    last = max(root.real for root in roots if abs(root.imag) < 1e-12)
    assert max(near.convex[0], 0.6 * last if slope < 0.1 else 0) <= near.safe[0] <= last
    assert 0.7 * lowest / third < near.convex[0] < lowest / third
