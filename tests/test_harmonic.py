"""Harmonic, automatic and tiled dense kernel sums against sums in extended precision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jko import sphere
from jko.attention import fourier
from jko.attention.evaluators import AutoKernel, make_kernel
from jko.attention.harmonic import HarmonicKernel
from jko.attention.kernel import DenseKernel, KernelSums

EPS = np.finfo(float).eps
FIELDS = ("log_mobility", "mean", "second_moment")


def cloud(kind, n, dim, rng):
    normals = rng.standard_normal((n, dim))
    vertices = np.concatenate([np.eye(dim), -np.eye(dim)])
    raw = {
        "uniform": normals,
        "cluster": normals[:1] / np.linalg.norm(normals[:1]) + 0.05 * normals,
        "vertices": vertices[rng.integers(2 * dim, size=n)] + 0.05 * normals,
        "pole": vertices[dim - 1] + 1e-7 * normals,
        "coincident": np.repeat(normals[:1], n, axis=0),
        "exact vertices": vertices[rng.integers(2 * dim, size=n)],
    }
    return sphere.normalize(raw[kind])


def head(kind, dim, norm, rng):
    z = rng.standard_normal((dim, dim))
    raw = {
        "symmetric": z + z.T,
        "positive": z @ z.T,
        "negative": -z @ z.T,
        "rank one": np.outer(z[0], z[0]),
        "negative rank one": -np.outer(z[0], z[0]),
        "identity": np.eye(dim),
        "axis": np.diag(np.eye(dim)[-1]),
    }[kind]
    return norm * raw / np.abs(np.linalg.eigvalsh(raw)).max()


def heads(count, dim, norm, rng):
    return np.array([head("symmetric", dim, norm, rng) for _ in range(count)])


def weights_of(n, rng, power=1):
    a = rng.random(n) ** power
    return a / a.sum()


def extended(at, points, weights, matrices, order=2):
    """The sums in extended precision, term by term."""
    x, y, a, d = (v.astype(np.longdouble) for v in (at, points, weights, matrices))
    terms = a * np.exp(np.einsum("mi,hij,nj->hmn", x, d, y))
    i, j = np.triu_indices(y.shape[1])
    columns = [np.ones((len(y), 1)), y, y[:, i] * y[:, j]]
    return KernelSums(order=order, totals=terms @ np.concatenate(columns[: order + 1], axis=1))


def errors(sums, reference):
    """Largest relative error of the mobility and absolute errors of the moments, by head."""
    result = np.zeros(sums.log_mobility.shape[0])
    for name in FIELDS[: min(sums.order, reference.order) + 1]:
        value, exact = getattr(sums, name), getattr(reference, name)
        gap = np.abs(value - exact)
        if name == "log_mobility":
            gap = np.expm1(gap)
        gap = np.sqrt((gap.reshape(*gap.shape[:2], -1) ** 2).sum(axis=2))
        result = np.maximum(result, gap.max(axis=1).astype(float))
    return result


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("norm", [0.0, 0.3, 2.0, 5.0])
def test_agrees_with_dense_sums_pointwise(norm, dim, order):
    rng = np.random.default_rng(7)
    points, other = cloud("uniform", 400, dim, rng), cloud("vertices", 90, dim, rng)
    weights, matrices = weights_of(400, rng), heads(3, dim, 1.0, rng) * norm
    for at in (points, other):
        evaluation = HarmonicKernel().evaluate(at, points, weights, matrices, order)
        dense = DenseKernel().sums(at, points, weights, matrices, order)
        assert (evaluation.dense_targets == 0).all()
        assert (evaluation.degrees > 0).all()
        assert (evaluation.error_bound <= 1e-12).all()
        assert (errors(evaluation.sums, dense) <= 1e-12).all()
        assert evaluation.sums.totals.shape == dense.totals.shape


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dim=st.sampled_from([2, 3]),
    tokens=st.sampled_from(
        ["uniform", "cluster", "vertices", "pole", "coincident", "exact vertices"]
    ),
    shape=st.sampled_from(
        ["symmetric", "positive", "negative", "rank one", "negative rank one", "identity", "axis"]
    ),
    log_norm=st.floats(-3, np.log(50)),
    n=st.integers(1, 60),
    power=st.sampled_from([0, 1, 20]),
)
def test_bound_holds_and_never_exceeds_the_tolerance(seed, dim, tokens, shape, log_norm, n, power):
    rng = np.random.default_rng(seed)
    points, weights = cloud(tokens, n, dim, rng), weights_of(n, rng, power)
    norm = np.exp(log_norm)
    matrices = head(shape, dim, norm, rng)[None]
    eigenvectors = np.linalg.eigh(matrices[0])[1].T
    at = sphere.normalize(np.concatenate([points, eigenvectors, cloud("uniform", 20, dim, rng)]))
    kernel = HarmonicKernel()
    evaluation = kernel.evaluate(at, points, weights, matrices, 1)
    error = errors(evaluation.sums, extended(at, points, weights, matrices, 1))
    assert evaluation.error_bound[0] <= kernel.tolerance
    dense = EPS * (20 + 4 * norm) if evaluation.dense_targets[0] or not evaluation.degrees[0] else 0
    assert error[0] <= max(evaluation.error_bound[0], dense)


def test_values_whose_bound_misses_the_tolerance_are_dense():
    rng = np.random.default_rng(3)
    points, weights = cloud("uniform", 300, 3, rng), weights_of(300, rng)
    weak, strong, hopeless = (head("symmetric", 3, r, rng) for r in (1.0, 12.0, 400.0))
    matrices = np.array([hopeless, weak, strong])
    evaluation = HarmonicKernel().evaluate(points, points, weights, matrices, 1)
    assert evaluation.degrees[0] == 0
    assert evaluation.dense_targets[1] == 0
    assert 0 < evaluation.dense_targets[2] < 300
    assert errors(evaluation.sums, extended(points, points, weights, matrices)).max() < 5e-12
    reference = DenseKernel().sums(points, points, weights, matrices[:1], 1)
    np.testing.assert_array_equal(evaluation.sums.mean[:1], reference.mean)


def test_a_tolerance_below_rounding_gives_the_dense_sums():
    rng = np.random.default_rng(4)
    points, weights = cloud("uniform", 50, 3, rng), weights_of(50, rng)
    matrices = heads(2, 3, 3.0, rng)
    evaluation = HarmonicKernel(tolerance=1e-16).evaluate(points, points, weights, matrices, 1)
    np.testing.assert_array_equal(evaluation.dense_targets[evaluation.degrees > 0], 50)
    reference = DenseKernel().sums(points, points, weights, matrices, 1)
    np.testing.assert_array_equal(evaluation.sums.log_mobility, reference.log_mobility)


def test_points_off_the_sphere_are_evaluated_densely():
    rng = np.random.default_rng(5)
    points, weights = cloud("uniform", 60, 3, rng), weights_of(60, rng)
    at = points.copy()
    at[3] *= 1.1
    at[7] = 0
    matrices = heads(2, 3, 2.0, rng)
    evaluation = HarmonicKernel().evaluate(at, points, weights, matrices, 1)
    np.testing.assert_array_equal(evaluation.dense_targets, 2)
    assert errors(evaluation.sums, extended(at, points, weights, matrices)).max() < 1e-12


@pytest.mark.parametrize("dim", [2, 3])
def test_one_token_has_a_closed_form(dim):
    rng = np.random.default_rng(6)
    point, at = cloud("uniform", 1, dim, rng), cloud("uniform", 30, dim, rng)
    matrices = heads(2, dim, 2.0, rng)
    sums = HarmonicKernel().sums(at, point, np.ones(1), matrices, 2)
    np.testing.assert_allclose(
        sums.log_mobility, np.einsum("mi,hij,j->hm", at, matrices, point[0]), atol=1e-12
    )
    np.testing.assert_allclose(sums.mean, np.broadcast_to(point[0], sums.mean.shape), atol=1e-12)
    outer = np.outer(point[0], point[0])
    second = sums.second_moment
    np.testing.assert_allclose(second, np.broadcast_to(outer, second.shape), atol=1e-12)


@pytest.mark.parametrize("kernel", [HarmonicKernel(), DenseKernel()])
def test_zero_weight_tokens_are_felt_by_none(kernel):
    rng = np.random.default_rng(8)
    points, weights = cloud("uniform", 600, 3, rng), weights_of(600, rng)
    weights[::2] = 0
    weights /= weights.sum()
    matrices = heads(2, 3, 3.0, rng)
    whole = kernel.sums(points, points, weights, matrices, 1)
    charged = kernel.sums(points, points[1::2], weights[1::2], matrices, 1)
    np.testing.assert_allclose(whole.log_mobility, charged.log_mobility, atol=1e-12)
    np.testing.assert_allclose(whole.mean, charged.mean, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "dim", "n"),
    [(DenseKernel, 3, 2600), (HarmonicKernel, 2, 20_000), (HarmonicKernel, 3, 20_000)],
)
def test_result_does_not_depend_on_threads(make, dim, n):
    rng = np.random.default_rng(9)
    points, weights = cloud("uniform", n, dim, rng), weights_of(n, rng)
    matrices = heads(1, dim, 2.0, rng)
    one, three = (make(threads=k).sums(points, points, weights, matrices, 1) for k in (1, 3))
    np.testing.assert_array_equal(one.log_mobility, three.log_mobility)
    np.testing.assert_array_equal(one.mean, three.mean)


@pytest.mark.parametrize(("dim", "order"), [(2, 1), (3, 0), (3, 2), (5, 1), (40, 1)])
def test_symmetric_tiles_agree_with_row_tiles(dim, order):
    rng = np.random.default_rng(10)
    points, weights = cloud("uniform", 700, dim, rng), weights_of(700, rng)
    matrices = heads(2, dim, 4.0, rng)
    symmetric = DenseKernel().sums(points, points, weights, matrices, order)
    rows = DenseKernel().sums(points.copy(), points, weights, matrices, order)
    assert (errors(symmetric, rows) <= 1e-13).all()


@pytest.mark.parametrize("norms", [(500.0, 1000.0), (2.0, 1000.0)])
def test_dense_sums_of_strong_heads_are_shifted(norms):
    rng = np.random.default_rng(11)
    points, weights = cloud("uniform", 300, 3, rng), weights_of(300, rng)
    weights[0] = 0
    matrices = np.array([head("symmetric", 3, norm, rng) for norm in norms])
    sums = DenseKernel().sums(points, points, weights / weights.sum(), matrices, 2)
    exact = extended(points, points, weights / weights.sum(), matrices)
    assert np.isfinite(sums.log_mobility).all()
    assert (errors(sums, exact) <= EPS * (20 + 4 * np.array(norms))).all()


def test_auto_chooses_by_size_and_dimension():
    rng = np.random.default_rng(12)
    auto = AutoKernel()

    def degrees(n, dim, norm, count=2):
        points = cloud("uniform", n, dim, rng)
        matrices = heads(count, dim, norm, rng)
        return auto.degrees(points, points, weights_of(n, rng), matrices, 1)

    assert not degrees(200, 3, 3.0).any()
    assert not degrees(20_000, 5, 3.0).any()
    assert degrees(20_000, 3, 3.0).all()
    assert degrees(2000, 2, 3.0).all()
    assert not degrees(2000, 3, 60.0).any()


def test_auto_agrees_with_dense_head_by_head():
    rng = np.random.default_rng(13)
    points, weights = cloud("vertices", 2500, 2, rng), weights_of(2500, rng)
    matrices = np.array([head("symmetric", 2, norm, rng) for norm in (0.5, 400.0, 6.0, 30.0)])
    auto, dense = (
        make_kernel(name).sums(points, points, weights, matrices, 1) for name in ("auto", "dense")
    )
    assert (errors(auto, dense) <= 2e-12).all()


def test_names_and_dimensions_are_checked():
    assert make_kernel("dense") == DenseKernel()
    assert make_kernel("harmonic") == HarmonicKernel()
    with pytest.raises(ValueError, match="'auto', 'dense', 'harmonic', got 'fast'"):
        make_kernel("fast")
    points = np.eye(4)
    with pytest.raises(ValueError, match="dimension 2 or 3, got 4"):
        HarmonicKernel().sums(points, points, np.full(4, 0.25), np.eye(4)[None], 1)
    with pytest.raises(ValueError, match="tolerance must be positive"):
        HarmonicKernel(tolerance=0.0)


def test_degree_follows_norm_and_tolerance():
    rng = np.random.default_rng(14)
    points, weights = cloud("uniform", 100, 3, rng), weights_of(100, rng)
    matrices = np.array([norm * np.eye(3) for norm in (0.1, 1.0, 3.0, 6.0)])
    tight, loose = (
        HarmonicKernel(tolerance=t).degrees(points, weights, matrices, 1) for t in (1e-12, 1e-6)
    )
    assert (np.diff(tight) > 0).all()
    assert (loose < tight).all()
    assert tight[2] == 20


@pytest.mark.parametrize("dim", [2, 3])
def test_series_through_the_grid_reproduces_polynomials(dim):
    rng = np.random.default_rng(15)
    degree = 9
    grid = fourier.grid(dim, degree)
    at = np.concatenate([cloud("uniform", 40, dim, rng), np.eye(dim), -np.eye(dim)])
    direction = cloud("uniform", 5, dim, rng)

    def polynomials(x):
        return (x @ direction.T) ** np.array([0, 1, 4, 8, 9])

    series = grid.series(polynomials(grid.nodes)[None])
    values = np.empty((1, at.shape[0], 5))
    series.evaluate(at, values)
    np.testing.assert_allclose(values[0], polynomials(at), atol=1e-14)


@pytest.mark.parametrize("dim", [2, 3])
def test_spread_masses_integrate_polynomials_as_the_tokens_do(dim):
    rng = np.random.default_rng(16)
    points, weights = cloud("cluster", 30, dim, rng), weights_of(30, rng)
    grid = fourier.grid(dim, 8)
    masses = grid.spread(fourier.moments(points, weights, 8))
    direction = cloud("uniform", 5, dim, rng)
    for power in range(9):
        expected = weights @ (points @ direction.T) ** power
        np.testing.assert_allclose(
            masses @ (grid.nodes @ direction.T) ** power, expected, atol=1e-14
        )


@pytest.mark.parametrize("degree", [1, 2, 7, 30, 100])
def test_lebesgue_constant_bounds_the_projection(degree):
    inner, _ = fourier.grid(2, degree).factors[0]
    spacing = np.pi / (degree + 1)
    angle = np.linspace(0, spacing, 101)
    features, _ = fourier.features(np.stack([np.cos(angle), np.sin(angle)]), degree)[0]
    norm = np.abs(inner.T @ features).sum(axis=0).max()
    assert norm <= fourier.lebesgue_constant(2, np.array([degree]))[0] <= norm + 0.2
