"""The attention model against a naive second implementation, derivatives and symmetries."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jko import AttentionModel, Heads, TokenCloud, sphere, weights
from jko.attention import compiled, kernel, threads, tiles
from jko.attention.fields import KernelOverflowError
from jko.attention.kernel import DenseKernel

SHAPES = [
    (1, 2, 1),
    (5, 2, 3),
    (12, 3, 1),
    (12, 3, 4),
    (30, 4, 2),
    (9, 10, 3),
    (6, 50, 2),
    (300, 3, 2),
]
FIELDS = ("first_variation", "gradient", "head_mobility", "effective_mobility")


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("n", "dim", "count"), SHAPES)
@pytest.mark.parametrize("evaluator", ["auto", "dense"])
def test_every_quantity_equals_its_definition(
    n, dim, count, sign, evaluator, random_problem, naive
):
    model, cloud = random_problem(n + dim, n, dim, count, sign, weighted=True)
    model = AttentionModel(model.path, sign, evaluator)
    if n > 1:
        charged = np.r_[0, cloud.weights[1:] / cloud.weights[1:].sum()]
        cloud = TokenCloud(cloud.points, charged)
    oracle = naive(model, cloud)
    elsewhere = TokenCloud.uniform(7, dim, 3).points
    for at in (cloud.points, cloud.points.copy(), elsewhere, elsewhere[:1]):
        for name in FIELDS:
            value = getattr(model, name)(at, cloud, 0.0)
            expected = getattr(oracle, name)(at)
            assert value.shape == expected.shape
            np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12)
    assert model.energy(cloud, 0) == pytest.approx(oracle.energy, rel=1e-13)
    assert model.slope_squared(cloud, 0) == pytest.approx(oracle.slope_squared, rel=1e-11)
    assert model.defect_rate(cloud, 0) == pytest.approx(oracle.defect_rate, rel=1e-10, abs=1e-25)
    for kind in ("gradient", "softmax"):
        velocity = model.velocity(cloud, 0, kind)
        np.testing.assert_allclose(velocity, oracle.velocity(kind), rtol=1e-11, atol=1e-12)
        assert np.abs((velocity * cloud.points).sum(axis=1)).max() <= 1e-13
        speed = model.metric_speed_squared(cloud, 0, kind)
        assert speed == pytest.approx(oracle.speed_squared(velocity), rel=1e-11)


@pytest.mark.parametrize("sign", [1, -1])
def test_energy_time_derivative_equals_its_definition(sign, naive):
    heads = Heads(Heads.gaussian(3, 4, 0).matrices, [0.2, 0.3, 0.5])
    model = AttentionModel(weights.Oscillating(heads), sign)
    cloud = TokenCloud(TokenCloud.uniform(11, 4, 1).points, np.arange(11) / 55)
    for t in (0.0, 0.7):
        expected = naive(model, cloud, t).energy_time_derivative(model.path.derivative(t))
        assert model.energy_time_derivative(cloud, t) == pytest.approx(expected, rel=1e-12)


def test_signs_and_defaults(random_problem):
    plus, cloud = random_problem(0)
    minus = AttentionModel(plus.path, -1)
    assert plus.sign == 1
    assert minus.energy(cloud, 0) == -plus.energy(cloud, 0)
    np.testing.assert_array_equal(minus.velocity(cloud, 0), -plus.velocity(cloud, 0))
    softmax = [m.velocity(cloud, 0, "softmax") for m in (plus, minus)]
    np.testing.assert_array_equal(softmax[0], -softmax[1])
    for name in ("head_mobility", "effective_mobility"):
        values = [getattr(m, name)(cloud.points, cloud, 0) for m in (plus, minus)]
        np.testing.assert_array_equal(*values)
    assert plus.slope_squared(cloud, 0) == minus.slope_squared(cloud, 0)
    assert plus.metric_speed_squared(cloud, 0) == pytest.approx(plus.slope_squared(cloud, 0))


def test_one_head_has_no_defect(random_problem):
    model, cloud = random_problem(1, heads=1)
    assert model.defect_rate(cloud, 0) == 0
    np.testing.assert_allclose(
        model.velocity(cloud, 0), model.velocity(cloud, 0, "softmax"), rtol=1e-14, atol=1e-16
    )
    same = AttentionModel(Heads(np.repeat(model.path(0).matrices, 3, axis=0)))
    assert same.defect_rate(cloud, 0) == pytest.approx(0, abs=1e-28)


def test_defect_for_several_heads_is_positive(random_problem):
    for seed in range(5):
        model, cloud = random_problem(seed, heads=2)
        assert model.defect_rate(cloud, 0) > 1e-6


def test_mobility_bounds_and_harmonic_mean(random_problem):
    model, cloud = random_problem(2, heads=4, size=2.0, weighted=True)
    at = sphere.fibonacci_nodes(500)
    each, effective = model.head_mobility(at, cloud, 0), model.effective_mobility(at, cloud, 0)
    strength = model.path(0).norms[:, None]
    assert (each <= np.exp(strength)).all()
    assert (each >= np.exp(-strength)).all()
    arithmetic = model.path(0).weights @ each
    assert (effective <= arithmetic).all()
    assert (effective >= each.min(axis=0)).all()


@pytest.mark.parametrize("dim", [2, 3, 6])
@pytest.mark.parametrize("sign", [1, -1])
def test_gradients_pass_the_taylor_test(dim, sign, random_problem):
    """|V(exp h v) - V - h <p, v>| has slope 2, and so has the energy under moves of all tokens."""
    model, cloud = random_problem(dim, dim=dim, sign=sign, weighted=True)
    rng = np.random.default_rng(0)
    at = cloud.points
    v = sphere.project(at, rng.standard_normal(at.shape))
    p, value = model.gradient(at, cloud, 0), model.first_variation(at, cloud, 0)
    steps = 10.0 ** -np.arange(2, 4.5, 0.5)
    single, joint = [], []
    for h in steps:
        moved = sphere.exp(at, h * v)
        first_order = value + h * (p * v).sum(axis=1)
        error = model.first_variation(moved, cloud, 0) - first_order
        single.append(np.linalg.norm(error))
        change = model.energy(TokenCloud(moved, cloud.weights), 0) - model.energy(cloud, 0)
        joint.append(abs(change - h * cloud.weights @ (p * v).sum(axis=1)))
    for errors in (single, joint):
        slope = np.polyfit(np.log(steps), np.log(errors), 1)[0]
        assert slope == pytest.approx(2, abs=0.03)


def test_mobility_gradient_and_hessian_against_differences(random_problem):
    model, cloud = random_problem(5, dim=3, heads=3, sign=-1, weighted=True)
    at = TokenCloud.uniform(6, 3, 8).points
    fields = model.fields(at, cloud, 0.0, 2)
    rng, h = np.random.default_rng(0), 1e-5
    u = sphere.project(at, rng.standard_normal(at.shape))
    ends = [model.fields(sphere.exp(at, s * h * u), cloud, 0.0, 1) for s in (1, -1)]
    slope = (ends[0].effective_mobility - ends[1].effective_mobility) / (2 * h)
    expected = (fields.effective_mobility_gradient * u).sum(axis=1)
    np.testing.assert_allclose(slope, expected, atol=1e-8)
    back = [sphere.transport(e.at, at, e.gradient) for e in ends]
    product = (back[0] - back[1]) / (2 * h)
    hessian = fields.first_variation_hessian()
    np.testing.assert_allclose(np.einsum("mij,mj->mi", hessian, u), product, atol=1e-8)
    np.testing.assert_allclose(hessian, hessian.transpose(0, 2, 1), atol=1e-14)
    np.testing.assert_allclose(np.einsum("mij,mj->mi", hessian, at), 0, atol=1e-13)


@given(st.integers(0, 10**6), st.integers(2, 5), st.sampled_from([1, -1]))
def test_equivariance_under_rotations_and_permutations(seed, dim, sign):
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((2, dim, dim))
    heads = Heads.symmetrized(z, [0.4, 0.6])
    cloud = TokenCloud(TokenCloud.uniform(8, dim, rng).points, rng.dirichlet(np.ones(8)))
    q = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    order = rng.permutation(8)
    turned_heads = Heads.symmetrized(q @ heads.matrices @ q.T, heads.weights)
    turned = TokenCloud.normalized(cloud.points[order] @ q.T, cloud.weights[order])
    model, other = AttentionModel(heads, sign), AttentionModel(turned_heads, sign)
    assert other.energy(turned, 0) == pytest.approx(model.energy(cloud, 0), rel=1e-12)
    assert other.slope_squared(turned, 0) == pytest.approx(model.slope_squared(cloud, 0), rel=1e-10)
    for kind in ("gradient", "softmax"):
        expected = model.velocity(cloud, 0, kind)[order] @ q.T
        np.testing.assert_allclose(other.velocity(turned, 0, kind), expected, atol=1e-11)


class TestStrongHeads:
    @staticmethod
    def model(norm, count, sign=1):
        z = Heads.gaussian(count, 3, 4)
        return AttentionModel(Heads(z.matrices * (norm / z.norms)[:, None, None]), sign)

    @pytest.mark.parametrize("norm", [50, 299.9, 300.1, 500, 1000])
    @pytest.mark.parametrize("count", [1, 3])
    def test_velocities_are_finite_and_right(self, norm, count):
        """Against extended precision, whose exponents reach 11,000."""
        model, cloud = self.model(norm, count), TokenCloud.uniform(20, 3, 1)
        x, matrices = cloud.points.astype(np.longdouble), model.path(0).matrices
        kernel = np.exp(np.einsum("md,hde,ne->hmn", x, matrices, x))
        b = kernel.mean(axis=2)
        ambient = np.einsum("hmn,hde,ne->hmd", kernel, matrices, x) / 20
        gradient = ambient - (ambient * x).sum(-1)[..., None] * x
        softmax = -(gradient / b[..., None]).mean(axis=0)
        steepest = -(1 / b).mean(axis=0)[:, None] * gradient.mean(axis=0)
        for kind, expected in (("softmax", softmax), ("gradient", steepest)):
            velocity = model.velocity(cloud, 0, kind)
            # the rounding of the exponents alone, amplified
            np.testing.assert_allclose(velocity, expected.astype(float), rtol=1e-10 * norm)

    @pytest.mark.parametrize("norm", [50, 500])
    def test_an_energy_that_fits_is_given(self, norm):
        model, cloud = self.model(norm, 1), TokenCloud.uniform(20, 3, 1)
        x = cloud.points.astype(np.longdouble)
        exact = np.exp(np.einsum("md,de,ne->mn", x, model.path(0).matrices[0], x)).mean() / 2
        assert model.energy(cloud, 0) == pytest.approx(float(exact), rel=1e-10)
        assert np.isfinite(model.slope_squared(cloud, 0))

    def test_an_energy_that_overflows_is_a_clear_error(self):
        model, cloud = self.model(1000, 2), TokenCloud.uniform(20, 3, 1)
        message = r"overflows double precision \(e\^709\): the largest head has norm 1000"
        for call in (
            lambda: model.energy(cloud, 0),
            lambda: model.slope_squared(cloud, 0),
            lambda: model.first_variation(cloud.points, cloud, 0),
            lambda: model.gradient(cloud.points, cloud, 0),
            lambda: model.head_mobility(cloud.points, cloud, 0),
            lambda: model.energy_time_derivative(cloud, 0),
        ):
            with pytest.raises(KernelOverflowError, match=message):
                call()
        assert issubclass(KernelOverflowError, OverflowError)

    def test_the_slope_overflows_before_the_energy(self):
        """Energy about e^490; the gradient is as large, and bhat is about e^-490."""
        heads = Heads([np.diag([500.0, -500.0]), np.diag([-500.0, 500.0])])
        model = AttentionModel(heads)
        cloud = TokenCloud([[np.cos(a), np.sin(a)] for a in (0.05, 0.1)])
        assert 480 < np.log(model.energy(cloud, 0)) < 500
        assert np.isfinite(model.velocity(cloud, 0, "softmax")).all()
        with pytest.raises(KernelOverflowError, match="overflows double precision"):
            model.slope_squared(cloud, 0)


class TestDenseKernel:
    @pytest.mark.parametrize("order", [0, 1, 2])
    @pytest.mark.parametrize("norm", [1.0, 400.0])
    def test_tiles_of_any_size_give_the_same_sums(self, order, norm, monkeypatch):
        heads = Heads.gaussian(3, 3, 0)
        matrices = heads.matrices * (norm / heads.norms)[:, None, None]
        cloud, other = TokenCloud.uniform(403, 3, 1), TokenCloud.uniform(57, 3, 2)
        sums = DenseKernel().sums
        for at in (cloud.points, other.points):
            whole = sums(at, cloud.points, cloud.weights, matrices, order)
            for entries in (16, 1000, 10**7):
                monkeypatch.setattr(kernel, "is_compiled", lambda *shape: False)
                monkeypatch.setattr(tiles, "TILE_ENTRIES", entries)
                monkeypatch.setattr(tiles, "SYMMETRIC_COUNT", 10)
                tiled = sums(at, cloud.points, cloud.weights, matrices, order)
                for name in ("log_mobility", "mean", "second_moment")[: order + 1]:
                    a, b = getattr(tiled, name), getattr(whole, name)
                    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
                monkeypatch.undo()
            for name in ("mean", "second_moment")[order:]:
                with pytest.raises(ValueError, match="order"):
                    getattr(whole, name)

    def test_the_same_to_the_last_bit_on_any_number_of_threads(self, monkeypatch):
        for room in (threads, compiled):
            monkeypatch.setattr(room, "PARALLEL_WORK", 0)
        matrices = Heads.gaussian(3, 3, 0).matrices
        points = TokenCloud.uniform(600, 3, 1).points
        weights = np.full(600, 1 / 600)
        for at in (points, points.copy()):
            results = [DenseKernel(k).sums(at, points, weights, matrices, 1) for k in (1, 2, 5)]
            for other in results[1:]:
                np.testing.assert_array_equal(results[0].log_mobility, other.log_mobility)
                np.testing.assert_array_equal(results[0].mean, other.mean)

    @pytest.mark.parametrize("own", [True, False])
    def test_memory_stays_far_below_one_kernel_matrix(self, own):
        n, count = 2000, 10
        matrices, points = Heads.gaussian(count, 3, 0).matrices, TokenCloud.uniform(n, 3, 1).points
        at = points if own else points.copy()
        weights = np.full(n, 1 / n)
        DenseKernel().sums(at[:10], points, weights, matrices, 1)
        tracemalloc.start()
        sums = DenseKernel().sums(at, points, weights, matrices, 1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert sums.mean.shape == (count, n, 3)
        # one head's kernel is 32 MB, all of them are 320 MB; the result itself is 0.6 MB
        assert peak < 12e6


def test_arguments_are_checked(random_problem):
    model, cloud = random_problem(0)
    heads = model.path(0)
    with pytest.raises(ValueError, match=r"sign must be \+1 or -1, got 0"):
        AttentionModel(heads, 0)
    with pytest.raises(TypeError, match="path must be a weight path or Heads, got ndarray"):
        AttentionModel(heads.matrices)
    with pytest.raises(ValueError, match=r"evaluator must be one of 'auto', .*, got 'fast'"):
        AttentionModel(heads, evaluator="fast")
    with pytest.raises(ValueError, match="kind must be one of 'gradient', 'softmax', got 'x'"):
        model.velocity(cloud, 0, "x")
    with pytest.raises(ValueError, match="kind must be one of"):
        model.metric_speed_squared(cloud, 0, "x")
    with pytest.raises(ValueError, match="cloud has dimension 2 but the heads have dimension 3"):
        model.energy(TokenCloud([[1, 0]]), 0)
    with pytest.raises(ValueError, match="t must be finite, got nan"):
        model.energy(cloud, np.nan)
    with pytest.raises(TypeError, match="t must be a real number, got 'now'"):
        model.energy(cloud, "now")
    for name in FIELDS:
        function = getattr(model, name)
        with pytest.raises(ValueError, match=r"at must have shape \(m, 3\), got \(2, 2\)"):
            function(np.eye(2), cloud, 0)
        with pytest.raises(ValueError, match="at must have 2 axes"):
            function([1.0, 0, 0], cloud, 0)
        with pytest.raises(ValueError, match=r"at must be finite, got at\[0, 2\] = nan"):
            function([[1.0, 0, np.nan]], cloud, 0)
        with pytest.raises(ValueError, match=r"at must be unit vectors, got \|at\[1\]\| = 2"):
            function([[1.0, 0, 0], [2.0, 0, 0]], cloud, 0)
    with pytest.raises(TypeError, match="cloud must be a TokenCloud, got ndarray"):
        model.energy(cloud.points, 0)
