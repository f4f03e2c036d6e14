"""The compiled kernel sums against numpy's, on every instruction set of this processor."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jko import AttentionModel, Heads, TokenCloud, sphere
from jko.attention import compiled, fourier, kernel, threads
from jko.attention.compiled import compiled_sums, instruction_set, is_compiled
from jko.attention.kernel import exponential_sums, moment_payload
from jko.attention.tiles import row_sums

module = pytest.importorskip("jko.attention._compiled", reason="built without a compiler")


@pytest.fixture(params=module.instruction_sets())
def every_set(request):
    best = module.instruction_set()
    module.use(request.param)
    yield request.param
    module.use(best)


def case(n, dim, heads, norm, seed, signed=False):
    rng = np.random.default_rng(seed)
    points = sphere.normalize(rng.standard_normal((n, dim)))
    matrices = Heads.gaussian(heads, dim, rng).matrices
    matrices = norm * matrices / np.linalg.norm(matrices, axis=(1, 2), keepdims=True)
    weights = rng.standard_normal(n) if signed else rng.random(n)
    return points, weights, matrices


def close(value, at, points, payload, matrices, expected):
    """To rounding, relative to the sums of the absolute values of the terms."""
    size = row_sums(at, points, np.abs(payload), matrices, 1)[0]
    norm = np.linalg.norm(matrices, axis=(1, 2)).max(initial=0)
    assert (np.abs(value - expected) <= 4e-16 * (8 + 4 * norm) * size + 1e-300).all()


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("dim", [2, 3, 4])
@pytest.mark.parametrize("n", [1, 3, 7, 8, 9, 64, 203])
def test_agrees_with_numpy(every_set, n, dim, order):
    points, weights, matrices = case(n, dim, 3, 5.0, n + dim, signed=True)
    payload = moment_payload(points, weights, order)
    expected = row_sums(points, points, payload, matrices, 1)[0]
    assert is_compiled(dim, payload.shape[1])
    for at in (points, points.copy()):
        value = compiled_sums(at, points, payload, matrices, 1)
        close(value, points, points, payload, matrices, expected)
    some = points[: n // 2]
    part = compiled_sums(some, points, payload, matrices, 1)
    close(part, some, points, payload, matrices, expected[:, : n // 2])


@pytest.mark.parametrize("dim", [2, 3])
def test_one_more_column(every_set, dim):
    points, weights, matrices = case(150, dim, 2, 3.0, dim)
    for order in (0, 1, 2):
        payload = moment_payload(points, weights, order)
        payload = np.concatenate([payload, weights[:, None]], axis=1)
        assert is_compiled(dim, payload.shape[1])
        value = compiled_sums(points.copy(), points, payload, matrices, 1)
        np.testing.assert_allclose(value[..., -1], value[..., 0], rtol=1e-14)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 90), norm=st.floats(0, 300))
def test_the_exponential_is_accurate_over_its_range(seed, n, norm):
    points, weights, matrices = case(n, 3, 2, norm, seed)
    payload = moment_payload(points, weights, 1)
    value = compiled_sums(points, points, payload, matrices, 1)
    close(value, points, points, payload, matrices, row_sums(points, points, payload, matrices, 1)[0])


def test_to_an_ulp(every_set):
    """One source and one target: the exponential itself, against extended precision."""
    at = np.array([[1.0, 0.0]])
    scores = np.concatenate([np.linspace(-300, 300, 4001), [0.0, -0.0, 1e-300, 0.5 * np.log(2)]])
    matrices = np.zeros((scores.size, 2, 2))
    matrices[:, 0, 0] = scores
    value = compiled_sums(at.copy(), at, np.ones((1, 1)), matrices, 1)[:, 0, 0]
    exact = np.exp(scores.astype(np.longdouble))
    # the argument is rounded once more, by 1 / ln 2
    allowed = np.finfo(float).eps * (1 + np.abs(scores))
    assert (np.abs(value / exact - 1) <= allowed).all()
    assert (value[scores == 0] == 1).all()


def test_not_a_number_stays_one(every_set):
    points, weights, matrices = case(20, 3, 1, 2.0, 0)
    points[3] = np.nan
    value = compiled_sums(points, points, moment_payload(points, weights, 1), matrices, 1)
    assert np.isnan(value).all()


def test_any_layout_of_arrays():
    points, weights, matrices = case(40, 3, 2, 2.0, 1)
    payload = moment_payload(points, weights, 2)
    expected = compiled_sums(points, points, payload, matrices, 1)
    turned = np.asfortranarray(points)
    for at in (turned, points[:, :]):
        value = compiled_sums(at, turned, np.asfortranarray(payload), matrices, 1)
        np.testing.assert_allclose(value, expected, rtol=1e-13)


def test_sizes_that_do_not_fit_are_refused():
    points, weights, matrices = case(10, 3, 1, 1.0, 2)
    payload, total = moment_payload(points, weights, 1), np.empty((10, 4))
    with pytest.raises(ValueError, match="sizes"):
        module.row_sums(points, matrices, points, payload, total[:9], 1, 10, 3, 4)
    with pytest.raises(ValueError, match="sizes"):
        module.row_sums(points, matrices[:, :2], points, payload, total, 1, 10, 3, 4)
    with pytest.raises(ValueError, match="sizes"):
        module.row_sums(points, matrices, points, payload, total, 1, 10, 5, 4)
    with pytest.raises(ValueError, match="sizes"):
        module.symmetric_sums(points[:5], matrices, points, payload, total[:5], 1, 5, 3, 4, 0, 1)
    with pytest.raises(ValueError, match="no instruction set"):
        module.use("abacus")


def plainly(function, *args):
    """The result of `fourier` without compiled code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fourier, "has_compiled_series", lambda: False)
        return function(*args)


@pytest.mark.parametrize("degree", [1, 2, 3, 8, 21])
@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("n", [1, 7, 8, 31, 32, 33, 100])
def test_factors_of_the_fourier_basis(every_set, n, dim, degree):
    points = np.concatenate([case(n, dim, 1, 1.0, n)[0], np.eye(dim), -np.eye(dim)])
    pairs = fourier.features(points.T, degree)
    expected = plainly(fourier.features, points.T, degree)
    assert len(pairs) == len(expected) == dim - 1
    for pair, other in zip(pairs, expected, strict=True):
        for rows, theirs in zip(pair, other, strict=True):
            np.testing.assert_allclose(rows, theirs, atol=4e-15 * np.log2(2 * degree))


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("allowed", [1e-12, 1e-3, 1e3])
def test_values_of_series(every_set, dim, allowed):
    """Whole, trimmed to odd and even numbers of frequencies, and trimmed to nothing."""
    rng = np.random.default_rng(dim)
    grid = fourier.grid(dim, 9)
    x = grid.nodes
    values = np.stack([np.exp(x @ rng.standard_normal((dim, 4))) for _ in range(3)])
    series = grid.series(values).trimmed(np.full(3, allowed))[0]
    at = case(77, dim, 1, 1.0, 5)[0]
    found, expected = np.empty((3, 77, 4)), np.empty((3, 77, 4))
    series.evaluate(at, found)
    plainly(series.evaluate, at, expected)
    np.testing.assert_allclose(found, expected, atol=1e-13)


def test_series_of_many_points_on_threads(monkeypatch):
    monkeypatch.setattr(threads, "PARALLEL_WORK", 0)
    grid = fourier.grid(3, 6)
    series = grid.series(np.exp(grid.nodes[None, :, :2]))
    at = case(20_000, 3, 1, 1.0, 1)[0]
    one, two = np.empty((1, 20_000, 2)), np.empty((1, 20_000, 2))
    series.evaluate(at, one, 1)
    series.evaluate(at, two, 2)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(one[0], np.exp(at[:, :2]), atol=1e-5)


def test_series_of_sizes_that_do_not_fit_are_refused():
    at, total, c = np.ones((4, 2)), np.empty((1, 4, 1)), np.zeros((1, 1, 1, 3))
    module.fourier_values(at, total, 2, 1, 1, 1, 0, 4, c, 1, 3)
    for sizes in ((2, 0, 1, 1, 0, 4, c, 1, 3), (2, 1, 1, 1, 2, 5, c, 1, 3), (3, 1, 1, 1, 0, 4, c, 1, 3)):
        with pytest.raises(ValueError, match="sizes"):
            module.fourier_values(at, total, *sizes)
    for sizes in ((2, 1, 2, 1, 0, 4, c, 1, 3), (2, 1, 1, 1, 0, 4, c, 1, 4), (2, 1, 1, 1, 0, 4, c, 2, 2)):
        with pytest.raises(ValueError, match="sizes"):
            module.fourier_values(at, total, *sizes)
    with pytest.raises(ValueError, match="sizes"):
        module.fourier_factors(at, 2, 2, np.empty((5, 4)), np.empty((2, 4)))


def test_the_kernel_uses_it_and_works_without(monkeypatch):
    assert instruction_set() in module.instruction_sets()
    model = AttentionModel(Heads.gaussian(3, 3, 0))
    cloud = TokenCloud.uniform(60, 3, 1)
    with_it = model.gradient(cloud.points, cloud, 0)
    calls = []
    plain = module.symmetric_sums
    monkeypatch.setattr(module, "symmetric_sums", lambda *a: calls.append(1) or plain(*a))
    np.testing.assert_array_equal(model.gradient(cloud.points, cloud, 0), with_it)
    assert calls
    monkeypatch.setattr(kernel, "is_compiled", lambda *shape: False)
    monkeypatch.setattr(compiled, "_compiled", None)
    assert instruction_set() is None
    np.testing.assert_allclose(model.gradient(cloud.points, cloud, 0), with_it, atol=1e-14)


def test_other_dimensions_run_through_numpy():
    points, weights, matrices = case(50, 5, 2, 1.0, 3)
    payload = moment_payload(points, weights, 1)
    assert not is_compiled(5, payload.shape[1])
    value = exponential_sums(points, points, payload, matrices)
    expected = row_sums(points, points, payload, matrices, 1)[0]
    np.testing.assert_allclose(value, expected, rtol=1e-13)
