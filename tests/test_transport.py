"""Transport: guards of the plan solver, distances against other solvers."""

from __future__ import annotations

import tracemalloc

import numpy as np
import ot
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jko import TokenCloud, sphere, wasserstein
from jko.transport import plan as plan_module
from jko.transport.distance import labelled_distance
from jko.transport.plan import PlanError, PlanTooLargeError, optimal_plan
from scipy.optimize import linear_sum_assignment, linprog

EPS = np.finfo(float).eps


def linear_program(cost, a, b):
    """The transport problem by HiGHS."""
    n, m = cost.shape
    rows = np.kron(np.eye(n), np.ones(m))
    columns = np.kron(np.ones(n), np.eye(m))
    solved = linprog(
        cost.ravel(), A_eq=np.vstack([rows, columns])[:-1], b_eq=np.r_[a, b][:-1], method="highs"
    )
    return solved.fun


def random_weights(rng, n):
    return rng.dirichlet(np.ones(n))


class TestOptimalPlan:
    @pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 5), (7, 1), (6, 6), (5, 9)])
    def test_against_a_linear_program(self, n, m):
        rng = np.random.default_rng(n + m)
        a, b = random_weights(rng, n), random_weights(rng, m)
        cost = rng.standard_normal((n, m))
        found = optimal_plan(cost, a, b)
        assert found.cost == pytest.approx(linear_program(cost, a, b), abs=1e-9)
        dense = found.plan.toarray()
        assert (dense >= 0).all()
        np.testing.assert_allclose(dense.sum(axis=1), a, atol=1e-15)
        np.testing.assert_allclose(dense.sum(axis=0), b, atol=1e-15)
        assert found.plan.nnz <= n + m - 1
        assert found.cost == pytest.approx((dense * cost).sum(), rel=1e-14)

    @pytest.mark.parametrize("shift", [-1e6, -3.0, 0.0, 1e6])
    @pytest.mark.parametrize("scale", [1e-200, 1e-14, 1.0, 1e14, 1e200])
    def test_costs_of_any_sign_and_scale(self, shift, scale):
        """All costs below -1 and costs of 1e-14 are what breaks the bare solver."""
        rng = np.random.default_rng(1)
        base = rng.random((40, 40))
        a = np.full(40, 1 / 40)
        i, j = linear_sum_assignment(base)
        expected = base[i, j].mean()
        found = optimal_plan(scale * (base + shift), a, a)
        dense = found.plan.toarray()
        # the plan itself is optimal, whatever the shift does to the value's digits
        assert (dense * base).sum() == pytest.approx(expected, abs=1e-9)
        assert found.cost == pytest.approx(scale * (expected + shift), rel=1e-12)

    def test_constant_costs(self):
        a = np.array([0.25, 0.75])
        for value in (0.0, -7.0, 1e-30):
            found = optimal_plan(np.full((2, 2), value), a, a)
            assert found.cost == pytest.approx(value, rel=1e-14)

    @pytest.mark.parametrize("spread", [1e-3, 1e-5, 1e-7, 1e-9])
    def test_short_moves_beside_long_distances(self, spread):
        """A cluster whose moves are tiny, and a far point that sets the scale of the costs."""
        rng = np.random.default_rng(0)
        pole = np.array([0.0, 0, 1])
        x, y = (
            sphere.normalize(np.vstack([pole + spread * rng.standard_normal((40, 3)), -pole]))
            for _ in range(2)
        )
        cost = sphere.distance_matrix(x, y) ** 2
        i, j = linear_sum_assignment(cost)
        a = np.full(41, 1 / 41)
        exact = cost[i, j].sum() / 41
        assert optimal_plan(cost, a, a).cost == pytest.approx(exact, rel=1e-9, abs=0)

    def test_weights_of_zero_are_left_out(self):
        rng = np.random.default_rng(2)
        a, b, cost = random_weights(rng, 6), random_weights(rng, 5), rng.random((6, 5))
        padded = np.insert(np.insert(cost, 2, -1e9, axis=0), 3, -1e9, axis=1)
        found = optimal_plan(padded, np.insert(a, 2, 0), np.insert(b, 3, 0))
        assert found.plan.shape == (7, 6)
        assert found.cost == pytest.approx(optimal_plan(cost, a, b).cost, rel=1e-14)
        dense = found.plan.toarray()
        assert not dense[2].any()
        assert not dense[:, 3].any()

    def test_very_unequal_weights(self):
        rng = np.random.default_rng(3)
        a = np.r_[1e-12, 1e-9, random_weights(rng, 4)]
        b = np.r_[random_weights(rng, 5), 1e-12]
        a, b, cost = a / a.sum(), b / b.sum(), rng.random((6, 6))
        found = optimal_plan(cost, a, b)
        dense = found.plan.toarray()
        np.testing.assert_allclose(dense.sum(axis=1), a, atol=1e-16)
        assert dense[0].sum() == pytest.approx(1e-12, rel=1e-3)
        assert found.cost == pytest.approx(linear_program(cost, a, b), abs=1e-9)

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_cost_that_is_not_finite_is_named(self, value):
        cost = np.ones((3, 4))
        cost[1, 2] = value
        with pytest.raises(ValueError, match=rf"cost must be finite, got cost\[1, 2\] = {value}"):
            optimal_plan(cost, np.full(3, 1 / 3), np.full(4, 1 / 4))

    @pytest.mark.parametrize(
        ("a", "b", "message"),
        [
            ([0.5, 0.5], [1.0, 1.0], "b must sum to 1, got 2"),
            ([0.5, 0.4], [0.5, 0.5], "a must sum to 1, got 0.9"),
            ([1.5, -0.5], [0.5, 0.5], r"a must be nonnegative, got a\[1\] = -0\.5"),
            ([0.5, 0.5], [np.nan, 1.0], r"b must be finite, got b\[0\] = nan"),
            ([1.0], [0.5, 0.5], r"a must have shape \(2,\)"),
        ],
    )
    def test_weights_are_checked(self, a, b, message):
        """Silently rescaled or dropped masses would give a wrong distance."""
        with pytest.raises(ValueError, match=message):
            optimal_plan(np.ones((2, 2)), np.array(a), np.array(b))

    def test_float32_weights(self):
        rng = np.random.default_rng(4)
        a = random_weights(rng, 50).astype(np.float32)
        cost = rng.random((50, 50)).astype(np.float32)
        found = optimal_plan(cost, a, a[::-1].copy())
        assert found.plan.toarray().sum() == pytest.approx(1, abs=1e-6)

    def test_too_large_is_refused_before_any_work(self, monkeypatch):
        # a view of one number stands for 50,000 x 50,000 costs
        cost, weights = np.broadcast_to(0.0, (50_000, 50_000)), np.full(50_000, 1 / 50_000)
        with pytest.raises(
            PlanTooLargeError, match=r"between 50000 and 50000 points needs 93\.1 GiB"
        ):
            optimal_plan(cost, weights, weights)
        assert issubclass(PlanTooLargeError, MemoryError)
        monkeypatch.setattr(plan_module, "MEMORY_LIMIT", 100e6)
        cloud = TokenCloud.uniform(2000, 3, 0)
        tracemalloc.start()
        with pytest.raises(PlanTooLargeError, match="between 2000 and 2000 points"):
            wasserstein(cloud, cloud)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1e6


class TestPlanSolverFailures:
    """Whatever POT may return, a plan that is not optimal is an error."""

    cost = np.array([[0.0, 1.0], [1.0, 0.0]])
    a = np.array([0.5, 0.5])

    def solve_with(self, monkeypatch, plan, code=1, warning=None):
        log = {"result_code": code, "warning": warning}
        monkeypatch.setattr(ot, "emd", lambda *args, **kwargs: (np.array(plan), log))
        return optimal_plan(self.cost, self.a, self.a)

    def test_an_honest_answer_passes(self, monkeypatch):
        assert self.solve_with(monkeypatch, np.eye(2) / 2).cost == 0

    def test_result_code(self, monkeypatch):
        with pytest.raises(PlanError, match="ended with code 2"):
            self.solve_with(monkeypatch, np.eye(2) / 2, code=2)

    def test_warning_in_the_log(self, monkeypatch):
        with pytest.raises(PlanError, match="transport solver"):
            self.solve_with(monkeypatch, np.eye(2) / 2, warning="numItermax reached")

    @pytest.mark.parametrize(
        "bad",
        [
            np.zeros((2, 2)),
            np.eye(2),
            [[0.5, 0], [0.1, 0.4]],
            [[0.75, -0.25], [-0.25, 0.75]],
            np.full((2, 2), np.nan),
        ],
        ids=["zero", "mass", "marginals", "negative", "nan"],
    )
    def test_not_a_coupling(self, monkeypatch, bad):
        with pytest.raises(PlanError, match="transport solver returned"):
            self.solve_with(monkeypatch, bad)

    def test_warnings_become_errors(self, monkeypatch):
        def emd(*args, **kwargs):
            import warnings

            warnings.warn("numItermax reached before optimality", UserWarning, stacklevel=2)

        monkeypatch.setattr(ot, "emd", emd)
        with pytest.raises(PlanError, match="failed: numItermax reached"):
            optimal_plan(self.cost, self.a, self.a)

    def test_the_iteration_limit_grows_with_the_problem(self, monkeypatch):
        seen = {}

        def emd(a, b, cost, numItermax, log):
            seen[len(a)] = numItermax
            return np.diag(a), {"result_code": 1, "warning": None}

        monkeypatch.setattr(ot, "emd", emd)
        for n in (2, 500):
            optimal_plan(1 - np.eye(n), np.full(n, 1 / n), np.full(n, 1 / n))
        assert seen[500] > seen[2] >= 10**6


class TestWasserstein:
    @given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 12))
    def test_circle_against_the_closed_form(self, seed, n, m):
        """On the circle POT has an independent solver, in turns rather than radians."""
        rng = np.random.default_rng(seed)
        u, v = rng.random(n), rng.random(m)
        a, b = random_weights(rng, n), random_weights(rng, m)
        clouds = [
            TokenCloud(sphere.normalize(np.c_[np.cos(2 * np.pi * s), np.sin(2 * np.pi * s)]), w)
            for s, w in ((u, a), (v, b))
        ]
        exact = float(ot.wasserstein_circle(u, v, a, b, p=2, eps=1e-12)[0])
        assert wasserstein(*clouds) ** 2 == pytest.approx((2 * np.pi) ** 2 * exact, abs=1e-10)

    @given(st.integers(0, 10**6), st.integers(2, 20), st.sampled_from([2, 3, 10]))
    def test_metric_axioms_and_assignment(self, seed, n, dim):
        rng = np.random.default_rng(seed)
        a, b, c = (TokenCloud.uniform(n, dim, rng) for _ in range(3))
        ab = wasserstein(a, b)
        cost = sphere.distance(a.points[:, None], b.points[None]) ** 2
        i, j = linear_sum_assignment(cost)
        assert ab == pytest.approx(np.sqrt(cost[i, j].mean()), rel=1e-10)
        assert wasserstein(b, a) == pytest.approx(ab, rel=1e-12)
        assert wasserstein(a, a) == 0
        assert wasserstein(a, c) <= ab + wasserstein(b, c) + 1e-12
        shuffled = TokenCloud(b.points[rng.permutation(n)])
        assert wasserstein(a, shuffled) == pytest.approx(ab, rel=1e-12)
        assert ab <= labelled_distance(a.points, b.points, a.weights) + 1e-14

    def test_different_sizes_and_split_tokens(self):
        x = TokenCloud.uniform(5, 3, 0)
        doubled = TokenCloud(np.repeat(x.points, 2, axis=0))
        assert wasserstein(x, doubled) == pytest.approx(0, abs=1e-8)
        dirac = TokenCloud([[0, 0, 1.0]])
        expected = np.sqrt((sphere.distance(x.points, dirac.points) ** 2).mean())
        assert wasserstein(x, dirac) == pytest.approx(expected, rel=1e-13)
        antipodes = TokenCloud([[0, 0, -1.0]])
        assert wasserstein(dirac, antipodes) == pytest.approx(np.pi, rel=EPS)

    def test_labels_are_never_assumed(self):
        """A small perturbation of many tokens is cheaper to undo by relabelling."""
        rng = np.random.default_rng(0)
        x = TokenCloud.uniform(300, 3, rng)
        y = TokenCloud(sphere.normalize(x.points + 0.2 * rng.standard_normal((300, 3))))
        assert wasserstein(x, y) < 0.95 * labelled_distance(x.points, y.points, x.weights)

    def test_dimensions_must_agree(self):
        with pytest.raises(ValueError, match="cloud_b must have dimension 2 like cloud_a, got 3"):
            wasserstein(TokenCloud([[1, 0]]), TokenCloud([[1, 0, 0]]))


def test_memory_estimate_is_an_upper_bound():
    """The refusal uses an estimate: the solver must stay below it."""
    n = 400
    cost = np.random.default_rng(0).random((n, n))
    weights = np.full(n, 1 / n)
    optimal_plan(cost[:4, :4], np.full(4, 0.25), np.full(4, 0.25))
    tracemalloc.start()
    optimal_plan(cost, weights, weights)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= plan_module.plan_bytes(n, n)
