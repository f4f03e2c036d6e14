"""The sphere: accuracy at every distance, identities of the maps, node sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jko import sphere

EPS = np.finfo(float).eps
DISTANCES = [1e-150, 1e-16, 1e-12, 1e-8, 1e-4, 0.5, np.pi / 2, 2.0, np.pi - 1e-4, np.pi - 1e-9]

angles = st.floats(1e-12, np.pi - 1e-6)
dims = st.integers(2, 8)
seeds = st.integers(0, 2**32 - 1)


def unit(rng, *shape):
    return sphere.normalize(rng.standard_normal(shape))


def tangent(rng, x):
    """A unit tangent vector at x."""
    v = sphere.project(x, rng.standard_normal(x.shape))
    return sphere.project(x, v / np.linalg.norm(v, axis=-1, keepdims=True))


def exact_distance(x, y):
    """atan2(|x ^ y|, <x, y>) in extended precision: exact for the given doubles."""
    x, y = np.asarray(x, np.longdouble), np.asarray(y, np.longdouble)
    wedge = x[..., :, None] * y[..., None, :] - y[..., :, None] * x[..., None, :]
    area = np.sqrt((wedge**2).sum((-1, -2)) / 2)
    return np.arctan2(area, (x * y).sum(-1)).astype(float)


@pytest.mark.parametrize("angle", DISTANCES)
def test_distance_is_accurate_at(angle):
    x, y = np.array([1.0, 0, 0]), np.array([np.cos(angle), np.sin(angle), 0])
    for value in (
        sphere.distance(x, y),
        sphere.distance(y, x),
        sphere.distance_matrix([x], [y])[0, 0],
    ):
        assert value == pytest.approx(angle, rel=4 * EPS, abs=0)
    # what is left to pi is accurate too, to the spacing of doubles near pi
    assert abs((np.pi - sphere.distance(x, y)) - (np.pi - angle)) <= 2 * EPS * np.pi


@pytest.mark.parametrize("dim", [2, 3, 10, 384])
@pytest.mark.parametrize("angle", [1e-12, 1e-8, 1e-3, 1.0, 3.0, np.pi - 1e-9])
def test_distance_of_generic_points(dim, angle):
    rng = np.random.default_rng(dim)
    x = unit(rng, 50, dim)
    y = sphere.exp(x, angle * tangent(rng, x))
    exact = exact_distance(x, y)
    # |x| and |y| are one to rounding only, which moves a distance by about EPS
    np.testing.assert_allclose(sphere.distance(x, y), exact, rtol=4 * EPS, atol=4 * EPS)
    np.testing.assert_allclose(
        np.diag(sphere.distance_matrix(x, y)), exact, rtol=8 * EPS, atol=4 * EPS
    )


def test_distance_matrix_equals_distance_pair_by_pair():
    rng = np.random.default_rng(3)
    x, y = unit(rng, 7, 4), unit(rng, 9, 4)
    y[:3] = x[:3]
    y[3:5] = -x[3:5]
    expected = sphere.distance(x[:, None], y[None])
    np.testing.assert_allclose(sphere.distance_matrix(x, y), expected, rtol=4 * EPS, atol=EPS)
    assert (sphere.distance_matrix(x, y)[:3, :3].diagonal() == 0).all()


@given(seeds, dims, angles)
def test_exp_and_log_are_inverse(seed, dim, angle):
    rng = np.random.default_rng(seed)
    x = unit(rng, dim)
    v = angle * tangent(rng, x)
    y = sphere.exp(x, v)
    back = sphere.log(x, y)
    # near pi the direction of the geodesic is as badly conditioned as 1 / sin
    noise = 16 * EPS * max(1, angle / np.sin(angle))
    np.testing.assert_allclose(back, v, atol=noise)
    np.testing.assert_allclose(sphere.exp(x, back), y, atol=16 * EPS)
    assert abs(back @ x) <= 4 * EPS * angle
    assert np.linalg.norm(back) == pytest.approx(sphere.distance(x, y), rel=8 * EPS)
    assert abs(np.linalg.norm(y) - 1) <= 4 * EPS


@given(seeds, dims, angles)
def test_transport_is_an_isometry_of_tangent_spaces(seed, dim, angle):
    rng = np.random.default_rng(seed)
    x = unit(rng, dim)
    y = sphere.exp(x, angle * tangent(rng, x))
    u, v = tangent(rng, x), tangent(rng, x)
    moved_u, moved_v = sphere.transport(x, y, u), sphere.transport(x, y, v)
    noise = 64 * EPS * max(1, 1 / np.cos(angle / 2))
    assert abs(moved_u @ y) <= 4 * EPS
    assert moved_u @ moved_v == pytest.approx(u @ v, abs=noise)
    np.testing.assert_allclose(sphere.transport(y, x, moved_u), u, atol=noise)
    ahead = sphere.transport(x, y, sphere.log(x, y))
    np.testing.assert_allclose(ahead, -sphere.log(y, x), atol=noise * max(1, angle / np.sin(angle)))


@given(seeds, dims, st.floats(0, np.pi - 1e-6), st.floats(-1, 2))
def test_geodesic_has_constant_speed(seed, dim, angle, s):
    rng = np.random.default_rng(seed)
    x = unit(rng, dim)
    y = sphere.exp(x, angle * tangent(rng, x))
    covered = abs(s) * angle
    wrapped = abs((covered + np.pi) % (2 * np.pi) - np.pi)
    noise = 1e-14 * max(1, angle / max(np.sin(angle), 1e-300)) if angle else 0
    assert sphere.distance(x, sphere.geodesic(x, y, s)) == pytest.approx(wrapped, abs=1e-13 + noise)
    middle = sphere.midpoint(x, y)
    np.testing.assert_allclose(middle, sphere.geodesic(x, y, 0.5), atol=1e-14 + noise)
    assert sphere.distance(x, middle) == pytest.approx(sphere.distance(middle, y), abs=8 * EPS)


def test_geodesic_extends_beyond_its_end():
    x, y = np.array([1.0, 0]), np.array([np.cos(0.3), np.sin(0.3)])
    np.testing.assert_allclose(sphere.geodesic(x, y, 2.0), [np.cos(0.6), np.sin(0.6)], atol=1e-15)


def test_coincident_points_are_ordinary():
    x = unit(np.random.default_rng(0), 5, 3)
    assert (sphere.log(x, x) == 0).all()
    assert (sphere.distance(x, x) == 0).all()
    np.testing.assert_array_equal(sphere.exp(x, np.zeros_like(x)), x)
    v = tangent(np.random.default_rng(1), x)
    np.testing.assert_allclose(sphere.transport(x, x, v), v, atol=4 * EPS)


@pytest.mark.parametrize(
    "function",
    [
        sphere.log,
        sphere.midpoint,
        lambda x, y: sphere.geodesic(x, y, 0.5),
        lambda x, y: sphere.transport(x, y, np.zeros_like(x)),
    ],
    ids=["log", "midpoint", "geodesic", "transport"],
)
def test_antipodal_pair_is_named(function):
    x = unit(np.random.default_rng(0), 4, 3)
    y = x.copy()
    y[2] = -x[2]
    with pytest.raises(sphere.AntipodalError, match="pair 2 are antipodal"):
        function(x, y)
    with pytest.raises(sphere.AntipodalError, match=r"pair \(1, 0\) are antipodal"):
        function(x.reshape(2, 2, 3), y.reshape(2, 2, 3))
    with pytest.raises(sphere.AntipodalError, match="antipodal"):
        function(x[0], -x[0])
    assert issubclass(sphere.AntipodalError, ValueError)


@pytest.mark.parametrize("dim", [2, 3, 50, 384])
def test_near_antipodal_log_has_the_full_length_or_raises(dim):
    """Rounding of the norms must never turn an antipodal pair into a zero logarithm."""
    rng = np.random.default_rng(dim)
    for scale in (0.0, 1e-16, 3e-16, 1e-15, 1e-14, 1e-12):
        for x in unit(rng, 40, dim):
            y = sphere.normalize(
                -x * (1 + 2 * EPS * rng.integers(-1, 2)) + scale * rng.standard_normal(dim)
            )
            try:
                length = np.linalg.norm(sphere.log(x, y))
            except sphere.AntipodalError:
                continue
            assert length == pytest.approx(np.pi, abs=1e-10)


def test_functions_broadcast():
    rng = np.random.default_rng(0)
    x, y = unit(rng, 5, 1, 3), unit(rng, 4, 3)
    assert sphere.distance(x, y).shape == (5, 4)
    for function in (sphere.log, sphere.midpoint, sphere.project, sphere.exp):
        assert function(x, y).shape == (5, 4, 3)
    assert sphere.transport(x, y, y).shape == (5, 4, 3)
    assert sphere.geodesic(y[0], y[1], np.linspace(0, 1, 6)).shape == (6, 3)
    pair = sphere.log(x, y)[3, 2]
    np.testing.assert_allclose(pair, sphere.log(x[3, 0], y[2]), atol=1e-15)


def test_lists_and_integers_are_accepted():
    assert sphere.distance([1, 0], [0, 1]) == pytest.approx(np.pi / 2, rel=EPS)
    np.testing.assert_allclose(sphere.normalize([3, 4]), [0.6, 0.8], rtol=EPS)


def test_normalize_keeps_unit_vectors_bit_for_bit():
    x = unit(np.random.default_rng(0), 1000, 3)
    np.testing.assert_array_equal(sphere.normalize(x), x)
    assert np.abs(np.linalg.norm(sphere.normalize(1e6 * x), axis=1) - 1).max() <= 2 * EPS


def test_projection_is_an_orthogonal_projection():
    rng = np.random.default_rng(0)
    x, v = unit(rng, 20, 5), rng.standard_normal((20, 5))
    p = sphere.project(x, v)
    np.testing.assert_allclose((p * x).sum(1), 0, atol=1e-15)
    np.testing.assert_allclose(sphere.project(x, p), p, atol=1e-15)
    np.testing.assert_allclose(((v - p) * p).sum(1), 0, atol=1e-14)


@pytest.mark.parametrize("n", [1, 2, 7, 100, 2000])
def test_node_sets_are_unit_distinct_and_counted(n):
    for dim in (2, 3):
        nodes = sphere.nodes(n, dim)
        assert nodes.shape == (n, dim)
        assert np.abs(np.linalg.norm(nodes, axis=1) - 1).max() <= 4 * EPS
        assert np.unique(np.round(nodes, 12), axis=0).shape[0] == n


def test_circle_nodes_are_equispaced():
    nodes = sphere.circle_nodes(12)
    np.testing.assert_allclose(sphere.distance(nodes, np.roll(nodes, 1, 0)), np.pi / 6, rtol=1e-14)


@pytest.mark.parametrize("n", [100, 1000, 10_000])
def test_fibonacci_nodes_cover_the_sphere_evenly(n):
    nodes = sphere.fibonacci_nodes(n)
    points = unit(np.random.default_rng(1), 1000, 3)
    nearest = sphere.distance(points, nodes[(points @ nodes.T).argmax(axis=1)])
    # a cap of the mean cell has radius 2 / sqrt(n); no hole is much wider than that
    assert nearest.max() <= 3.0 / np.sqrt(n)
    # and they integrate: int exp(z) = sinh(1)
    axis = sphere.normalize([1.0, 2.0, -1.0])
    assert np.exp(nodes @ axis).mean() == pytest.approx(np.sinh(1), abs=20 / n**1.5)


def test_fibonacci_nodes_follow_the_formula():
    n, i = 50, 17
    z, phi = 1 - (2 * i + 1) / n, np.pi * (1 + np.sqrt(5)) * (i + 0.5)
    expected = [np.sqrt(1 - z * z) * np.cos(phi), np.sqrt(1 - z * z) * np.sin(phi), z]
    np.testing.assert_allclose(sphere.fibonacci_nodes(n)[i], expected, atol=1e-14)


def test_node_sets_refuse_what_they_cannot_do():
    with pytest.raises(ValueError, match=r"dim must be 2 or 3 .* got 4"):
        sphere.nodes(10, 4)
    for function in (sphere.circle_nodes, sphere.fibonacci_nodes):
        with pytest.raises(ValueError, match="n must be at least 1, got 0"):
            function(0)
