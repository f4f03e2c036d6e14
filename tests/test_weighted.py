"""The weighted Wasserstein distance, frozen and dynamic."""

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, sphere, wasserstein, weighted_distance
from jko.transport.weighted import _Action, dynamic_distance

HALF = Heads.gaussian(3, 3, 1).matrices / 2


@pytest.fixture(scope="module")
def model():
    return AttentionModel(Heads(HALF))


@pytest.fixture(scope="module")
def clouds():
    return (
        TokenCloud.uniform(6, 3, 0),
        TokenCloud.uniform(8, 3, 1),
        TokenCloud(TokenCloud.uniform(5, 3, 2).points, [0.1, 0.3, 0.2, 0.25, 0.15]),
    )


@pytest.fixture(scope="module")
def dynamic(model, clouds):
    return {
        (i, j): dynamic_distance(clouds[i], clouds[j], model, 0)
        for i in range(3)
        for j in range(3)
        if i != j
    }


def nearby(cloud, size, rng=3):
    move = np.random.default_rng(rng).standard_normal(cloud.points.shape)
    return TokenCloud(sphere.exp(cloud.points, size * sphere.project(cloud.points, move)))


def test_the_action_has_the_gradient_it_says(model, clouds):
    rng = np.random.default_rng(4)
    start = clouds[0].points
    nodes = np.stack([start, nearby(clouds[0], 0.3).points, TokenCloud.uniform(6, 3, 5).points])
    action = _Action(model, 0.0, clouds[0].weights)
    direction = sphere.project(nodes[1], rng.standard_normal(start.shape))

    def moved(e):
        shifted = nodes.copy()
        shifted[1] = sphere.exp(nodes[1], e * direction)
        return action(shifted)[0]

    slope = float((action(nodes)[1][1] * direction).sum())
    assert (moved(1e-5) - moved(-1e-5)) / 2e-5 == pytest.approx(slope, rel=1e-8)


def test_the_dynamic_distance_is_symmetric(dynamic):
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert dynamic[i, j].value == pytest.approx(dynamic[j, i].value, rel=1e-6)


def test_the_dynamic_distance_obeys_the_triangle_inequality(dynamic):
    # to the error of eight segments, 2e-5 between 8 and 32 on such clouds
    for i, j, k in ((0, 1, 2), (0, 2, 1), (1, 0, 2)):
        detour = dynamic[i, j].value + dynamic[j, k].value
        assert dynamic[i, k].value <= detour * (1 + 1e-4)


def test_paths_join_the_clouds_and_do_not_exceed_the_geodesics(dynamic, clouds):
    for (i, j), found in dynamic.items():
        np.testing.assert_allclose(found.paths[0], clouds[i].points[found.rows], atol=1e-15)
        np.testing.assert_allclose(found.paths[-1], clouds[j].points[found.columns], atol=1e-15)
        assert found.value**2 <= found.action_first * (1 + 1e-12)
        assert found.mass.sum() == pytest.approx(1)


def test_more_segments_converge_at_second_order(model, clouds):
    values = [
        dynamic_distance(clouds[0], clouds[1], model, 0, segments=n).value for n in (2, 4, 8)
    ]
    ratio = (values[0] - values[1]) / (values[1] - values[2])
    assert 3 < ratio < 5


@pytest.mark.parametrize("method", ["frozen", "dynamic"])
def test_bounds_against_the_plain_distance(model, clouds, method):
    a, b = clouds[0], clouds[1]
    limit = np.exp(np.abs(np.linalg.eigvalsh(HALF)).max() / 2)
    plain, weighted = wasserstein(a, b), weighted_distance(a, b, model, 0, method)
    assert plain / limit <= weighted <= plain * limit


def test_vanishing_heads_give_the_plain_distance(clouds):
    model = AttentionModel(Heads(np.zeros((2, 3, 3))))
    plain = wasserstein(clouds[0], clouds[1])
    for method in ("frozen", "dynamic"):
        value = weighted_distance(clouds[0], clouds[1], model, 0, method)
        assert value == pytest.approx(plain, rel=1e-7)


def test_both_agree_as_the_measures_approach(model):
    cloud = TokenCloud.uniform(10, 3, 6)
    ratios = []
    for size in (0.1, 0.01):
        other = nearby(cloud, size)
        dynamic = weighted_distance(cloud, other, model, 0, "dynamic")
        ratios.append(abs(dynamic / weighted_distance(cloud, other, model, 0) - 1))
    assert ratios[1] < 0.2 * ratios[0]
    assert ratios[1] < 1e-3


def test_frozen_is_asymmetric_until_it_is_symmetrised(model, clouds):
    a, b = clouds[0], clouds[1]
    there, back = weighted_distance(a, b, model, 0), weighted_distance(b, a, model, 0)
    assert abs(there / back - 1) > 1e-4
    both = weighted_distance(a, b, model, 0, symmetrize=True)
    assert both == pytest.approx(np.sqrt((there**2 + back**2) / 2), rel=1e-12)
    assert both == pytest.approx(weighted_distance(b, a, model, 0, symmetrize=True), rel=1e-12)


def test_bad_arguments_are_named(model, clouds):
    with pytest.raises(ValueError, match="method must be one of 'frozen', 'dynamic', got 'fast'"):
        weighted_distance(clouds[0], clouds[1], model, 0, "fast")
    with pytest.raises(ValueError, match="segments must be at least 1, got 0"):
        weighted_distance(clouds[0], clouds[1], model, 0, "dynamic", segments=0)
    with pytest.raises(ValueError, match="cloud_b must have dimension 3"):
        weighted_distance(clouds[0], TokenCloud([[1.0, 0]]), model, 0)
