"""Weight paths: each against its own definition."""

from __future__ import annotations

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, weights

TIMES = (-1.3, 0.0, 0.4, 2.0, 11.7)


def central_difference(path, t, h=1e-4):
    return (path(t + h).matrices - path(t - h).matrices) / (2 * h)


def target_on_the_circle(s):
    return np.array([[2 + 1.5 * np.cos(s), np.sin(2 * s)], [np.sin(2 * s), 2 - 1.5 * np.cos(s)]])


def target_on_the_sphere(s):
    a, b, c = np.sin(2 * s), np.sin(s), np.cos(2 * s)
    x, y, z = (2 + 1.5 * f for f in (np.cos(s), np.sin(s), np.cos(s + np.pi / 4)))
    return np.array([[x, a, b], [a, y, c], [b, c, z]])


def target_in_general(s, d):
    result = np.diag([2 + 1.5 * np.cos(s + 2 * np.pi * i / d) for i in range(d)])
    pairs = [(i, j) for i in range(d) for j in range(i + 1, d)]
    for k, (i, j) in enumerate(pairs):
        result[i, j] = result[j, i] = np.sin(2 * s + 2 * np.pi * k / len(pairs))
    return result


TARGETS = {
    2: target_on_the_circle,
    3: target_on_the_sphere,
    4: lambda s: target_in_general(s, 4),
    5: lambda s: target_in_general(s, 5),
}


@pytest.mark.parametrize("dim", TARGETS)
@pytest.mark.parametrize("count", [1, 3])
def test_oscillating_heads_follow_the_article(dim, count):
    start = Heads.gaussian(count, dim, 1)
    path = weights.Oscillating(start)
    np.testing.assert_allclose(path(0.0).matrices, start.matrices, atol=1e-14)
    for t in TIMES:
        expected = [TARGETS[dim](t + 2 * np.pi * h / count) for h in range(count)]
        np.testing.assert_allclose(path.target(t), expected, atol=1e-14)
        rate = path.derivative(t)
        size = np.abs(path(t).matrices).max()
        np.testing.assert_allclose(rate, expected - path(t).matrices, atol=1e-13 * size)
        np.testing.assert_allclose(rate, central_difference(path, t), atol=1e-6 * size)


def test_oscillating_heads_keep_their_weights_and_forget_their_start():
    start = Heads(Heads.gaussian(2, 3, 1).matrices, [0.25, 0.75])
    path = weights.Oscillating(start)
    np.testing.assert_array_equal(path(3.0).weights, [0.25, 0.75])
    other = weights.Oscillating(Heads(np.zeros((2, 3, 3))))
    np.testing.assert_allclose(path(40.0).matrices, other(40.0).matrices, atol=1e-14)
    np.testing.assert_allclose(path(40.0).matrices, path(40.0 + 2 * np.pi).matrices, atol=1e-13)


def test_frozen_heads():
    heads = Heads.gaussian(2, 3, 0)
    path = weights.Frozen(heads)
    assert path(7.0) is heads
    assert not path.derivative(7.0).any()
    assert path.derivative(7.0).shape == (2, 3, 3)
    assert path.breakpoints(0, 10).size == 0
    assert path.dim == 3
    with pytest.raises(ValueError, match="t must be finite, got nan"):
        path(np.nan)
    with pytest.raises(TypeError, match="heads must be Heads, got ndarray"):
        weights.Frozen(heads.matrices)


class TestOrnsteinUhlenbeck:
    def test_moments_are_exact_whatever_the_base_step(self):
        """Mean and covariance of dD = (I - D) dt + sqrt(v) (dW + dW^T)/2 at time 0.8."""
        t, variance, copies = 0.8, 1.7, 40_000
        start = np.array([[2.0, -1.0], [-1.0, 0.5]])
        heads = Heads(np.broadcast_to(start, (copies, 2, 2)))
        for base_step, seed in ((0.8, 1), (0.16, 2)):
            path = weights.OrnsteinUhlenbeck(
                heads, horizon=t, variance=variance, base_step=base_step, rng=seed
            )
            sample = path(t).matrices
            mean = np.eye(2) + np.exp(-t) * (start - np.eye(2))
            spread = variance * (1 - np.exp(-2 * t)) / 2
            deviation = sample - mean
            entries = np.stack([deviation[:, 0, 0], deviation[:, 1, 1], deviation[:, 0, 1]])
            # W_sym has variance t on the diagonal and t / 2 off it, entries independent
            expected = np.diag([spread, spread, spread / 2])
            error = 5 * spread / np.sqrt(copies)
            np.testing.assert_allclose(entries.mean(axis=1), 0, atol=5 * np.sqrt(spread / copies))
            np.testing.assert_allclose(np.cov(entries), expected, atol=2 * error)
            np.testing.assert_array_equal(sample, sample.transpose(0, 2, 1))

    def test_correlation_in_time(self):
        copies, h = 40_000, 0.25
        path = weights.OrnsteinUhlenbeck(
            Heads(np.zeros((copies, 2, 2))), horizon=1.0, base_step=h, rng=0
        )
        early, late = path(0.5).matrices[:, 0, 1], path(1.0).matrices[:, 0, 1]
        spread = (1 - np.exp(-1.0)) / 2  # variance 2, off the diagonal, time 0.5
        assert np.cov(early, late)[0, 1] == pytest.approx(np.exp(-0.5) * spread, rel=0.05)

    def test_the_recursion_is_the_documented_one(self):
        start, h, rng = Heads.gaussian(2, 3, 0), 0.1, np.random.default_rng(4)
        path = weights.OrnsteinUhlenbeck(start, horizon=1.0, base_step=h, rng=4)
        noise = rng.standard_normal((10, 2, 3, 3))
        expected = start.matrices
        for k in range(10):
            np.testing.assert_allclose(path(k * h).matrices, expected, atol=1e-13)
            z = (noise[k] + noise[k].transpose(0, 2, 1)) / 2
            expected = (
                np.eye(3)
                + np.exp(-h) * (expected - np.eye(3))
                + np.sqrt(2 * (1 - np.exp(-2 * h)) / 2) * z
            )

    def test_reproducible_and_independent_of_who_asks_when(self):
        start = Heads.gaussian(2, 3, 0)
        first = weights.OrnsteinUhlenbeck(start, horizon=2.0, rng=7)
        second = weights.OrnsteinUhlenbeck(start, horizon=2.0, rng=np.random.default_rng(7))
        for t in np.linspace(2, 0, 23):
            np.testing.assert_array_equal(first(t).matrices, second(t).matrices)
        other = weights.OrnsteinUhlenbeck(start, horizon=2.0, rng=8)
        assert not np.allclose(first(1.0).matrices, other(1.0).matrices)
        np.testing.assert_array_equal(first(0.0).matrices, start.matrices)

    def test_linear_between_grid_times(self):
        path = weights.OrnsteinUhlenbeck(Heads.gaussian(1, 3, 0), horizon=0.02, rng=1)
        assert path.base_step == 0.005
        a, b = path(0.005).matrices, path(0.01).matrices
        np.testing.assert_allclose(path(0.0085).matrices, 0.3 * a + 0.7 * b, atol=1e-12)
        np.testing.assert_allclose(path.derivative(0.0085), (b - a) / 0.005, rtol=1e-9)
        np.testing.assert_allclose(path.derivative(0.005), (b - a) / 0.005, rtol=1e-9)
        np.testing.assert_allclose(path.breakpoints(0, 0.02), [0.005, 0.01, 0.015])

    def test_horizon_is_rounded_up_and_is_the_end(self):
        path = weights.OrnsteinUhlenbeck(
            Heads.gaussian(1, 3, 0), horizon=1.05, base_step=0.1, rng=1
        )
        path(1.1)
        for t in (-0.01, 1.2):
            with pytest.raises(ValueError, match=r"t must lie in \[0\.0, 1\.1"):
                path(t)

    @pytest.mark.parametrize("name", ["horizon", "variance", "base_step"])
    @pytest.mark.parametrize("value", [0, -1.0, np.nan, np.inf])
    def test_bad_numbers(self, name, value):
        arguments = {"horizon": 1.0, name: value}
        with pytest.raises(ValueError, match=f"{name} must be (positive|finite), got"):
            weights.OrnsteinUhlenbeck(Heads.gaussian(1, 3, 0), **arguments)


class TestInterpolated:
    times = (0.0, 0.5, 2.0)
    matrices = np.stack([Heads.gaussian(2, 3, seed).matrices for seed in range(3)])

    def test_exact_at_the_times_and_linear_between(self):
        path = weights.Interpolated(self.times, self.matrices, [0.3, 0.7])
        for t, value in zip(self.times, self.matrices, strict=True):
            np.testing.assert_array_equal(path(t).matrices, value)
        between = 0.2 * self.matrices[1] + 0.8 * self.matrices[2]
        np.testing.assert_allclose(path(1.7).matrices, between, atol=1e-14)
        np.testing.assert_array_equal(path(1.7).weights, [0.3, 0.7])
        np.testing.assert_allclose(
            path.derivative(1.7), (self.matrices[2] - self.matrices[1]) / 1.5, atol=1e-14
        )

    def test_derivative_at_a_kink_is_from_the_right(self):
        path = weights.Interpolated(self.times, self.matrices)
        right = (self.matrices[2] - self.matrices[1]) / 1.5
        np.testing.assert_allclose(path.derivative(0.5), right)
        np.testing.assert_allclose(path.derivative(2.0), right)
        assert path.breakpoints(0.0, 2.0).tolist() == [0.5]
        assert path.breakpoints(0.5, 2.0).size == 0
        assert path.breakpoints(-1.0, 0.6).tolist() == [0.0, 0.5]

    @pytest.mark.parametrize("t", [-0.1, 2.1, -1e-6, 2 + 1e-6])
    def test_outside_its_domain(self, t):
        path = weights.Interpolated(self.times, self.matrices)
        for call in (path, path.derivative):
            with pytest.raises(ValueError, match=r"t must lie in \[0\.0, 2\.0\], the domain"):
                call(t)

    def test_rounding_at_the_ends_is_forgiven(self):
        path = weights.Interpolated(self.times, self.matrices)
        np.testing.assert_allclose(path(2 + 1e-15).matrices, self.matrices[2], atol=1e-12)
        np.testing.assert_allclose(path(-1e-15).matrices, self.matrices[0], atol=1e-12)

    def test_one_layer(self):
        path = weights.Interpolated([1.0], self.matrices[:1])
        np.testing.assert_array_equal(path(1.0).matrices, self.matrices[0])
        assert not path.derivative(1.0).any()

    @pytest.mark.parametrize(
        ("times", "layers", "message"),
        [
            ([0, 1], 3, r"matrices must have 2 layers, one per time, got 3"),
            ([0, 1, 1], 3, "times must be strictly increasing"),
            ([0, 2, 1], 3, "times must be strictly increasing"),
            ([], 0, "times must be strictly increasing and not empty"),
            ([0, np.nan, 1], 3, r"times must be finite, got times\[1\] = nan"),
            ([[0, 1, 2]], 3, "times must have 1 axes"),
        ],
    )
    def test_bad_layers(self, times, layers, message):
        with pytest.raises(ValueError, match=message):
            weights.Interpolated(times, self.matrices[:layers])

    def test_every_layer_must_be_symmetric(self):
        bad = self.matrices.copy()
        bad[2, 1, 0, 2] += 1
        with pytest.raises(ValueError, match="must be symmetric, its antisymmetric part"):
            weights.Interpolated(self.times, bad)


class TestFromFunction:
    @staticmethod
    def matrices(t):
        return np.array([[[np.cos(3 * t), t**3], [t**3, np.exp(-t)]]])

    @staticmethod
    def rate(t):
        return np.array([[[-3 * np.sin(3 * t), 3 * t**2], [3 * t**2, -np.exp(-t)]]])

    def test_default_derivative_is_accurate(self):
        path = weights.FromFunction(self.matrices)
        for t in (-0.7, 0.0, 1.9):
            # h^4 / 30 times the fifth derivative (243 here), and rounding
            np.testing.assert_allclose(path.derivative(t), self.rate(t), atol=2e-11)

    def test_given_derivative_is_used(self):
        path = weights.FromFunction(self.matrices, lambda t: 2 * self.rate(t))
        np.testing.assert_array_equal(path.derivative(0.3), 2 * self.rate(0.3))

    def test_function_may_return_heads_with_weights(self):
        heads = Heads.gaussian(2, 3, 0)
        weighted = Heads(heads.matrices, [0.1, 0.9])
        path = weights.FromFunction(lambda t: weighted)
        np.testing.assert_array_equal(path(0).weights, [0.1, 0.9])
        assert path.dim == 3

    def test_what_is_wrong_is_named(self):
        with pytest.raises(TypeError, match="function must be callable, got Heads"):
            weights.FromFunction(Heads.gaussian(1, 3, 0))
        with pytest.raises(TypeError, match="derivative must be callable, got float"):
            weights.FromFunction(self.matrices, 1.0)
        with pytest.raises(ValueError, match="must be symmetric"):
            weights.FromFunction(lambda t: np.array([[0.0, 1.0], [0.0, 0.0]]))(0)
        with pytest.raises(ValueError, match=r"derivative must have 3 axes"):
            weights.FromFunction(self.matrices, lambda t: 1.0).derivative(0)


class TestPerturbed:
    def test_value_derivative_and_kinks(self):
        base = weights.Oscillating(Heads(Heads.gaussian(2, 3, 0).matrices, [0.2, 0.8]))
        direction = weights.Interpolated([0, 1, 2], TestInterpolated.matrices)
        path = weights.Perturbed(base, direction, -0.1)
        for t in (0.3, 1.0, 1.6):
            expected = base(t).matrices - 0.1 * direction(t).matrices
            np.testing.assert_allclose(path(t).matrices, expected, atol=1e-14)
            rate = base.derivative(t) - 0.1 * direction.derivative(t)
            np.testing.assert_allclose(path.derivative(t), rate, atol=1e-14)
        np.testing.assert_array_equal(path(0.3).weights, [0.2, 0.8])
        assert path.breakpoints(0, 2).tolist() == [1.0]
        assert path.dim == 3

    def test_bare_heads_and_zero_epsilon(self):
        heads = Heads.gaussian(2, 3, 0)
        path = weights.Perturbed(heads, Heads.gaussian(2, 3, 1), 0)
        np.testing.assert_array_equal(path(1.0).matrices, heads.matrices)

    def test_what_is_wrong_is_named(self):
        heads = Heads.gaussian(2, 3, 0)
        with pytest.raises(ValueError, match=r"direction must have matrices of shape \(2, 3, 3\)"):
            weights.Perturbed(heads, Heads.gaussian(1, 3, 1), 0.1)(0)
        with pytest.raises(TypeError, match="direction must be a weight path or Heads, got int"):
            weights.Perturbed(heads, 1, 0.1)
        with pytest.raises(ValueError, match="epsilon must be finite, got nan"):
            weights.Perturbed(heads, heads, np.nan)


@pytest.mark.parametrize(
    "path",
    [
        weights.Oscillating(Heads.gaussian(2, 3, 0)),
        weights.OrnsteinUhlenbeck(Heads.gaussian(2, 3, 0), horizon=1, base_step=0.25, rng=0),
        weights.Perturbed(weights.Oscillating(Heads.gaussian(2, 3, 0)), Heads.gaussian(2, 3, 1), 1),
    ],
    ids=["oscillating", "ornstein-uhlenbeck", "perturbed"],
)
def test_the_energy_changes_in_time_as_the_derivative_says(path):
    model, cloud = AttentionModel(path, -1), TokenCloud.uniform(9, 3, 0)
    t, h = 0.6, 1e-5
    slope = (model.energy(cloud, t + h) - model.energy(cloud, t - h)) / (2 * h)
    assert model.energy_time_derivative(cloud, t) == pytest.approx(slope, rel=1e-7)
