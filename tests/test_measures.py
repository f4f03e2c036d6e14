"""Token clouds: validation, immutability, constructors, files."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from jko import TokenCloud, sphere

EPS = np.finfo(float).eps
SQUARE = np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1]])

BAD_POINTS = [
    ([[1.0, 0], [np.nan, 0]], ValueError, r"points must be finite, got points\[1, 0\] = nan"),
    ([[1.0, 0], [0, np.inf]], ValueError, r"points must be finite, got points\[1, 1\] = inf"),
    ([[1.0, 0], [0.6, 0.6]], ValueError, r"unit vectors, got \|points\[1\]\| = 0\.848528"),
    ([[1.0, 0], [0, 0]], ValueError, r"unit vectors, got \|points\[1\]\| = 0"),
    ([[1e200, 0], [0, 1]], ValueError, r"unit vectors, got \|points\[0\]\| = inf|= 1e\+200"),
    ([1.0, 0], ValueError, r"points must have 2 axes, got shape \(2,\)"),
    (1.0, ValueError, r"points must have 2 axes, got shape \(\)"),
    (np.zeros((2, 2, 2)), ValueError, r"points must have 2 axes, got shape \(2, 2, 2\)"),
    (np.zeros((0, 3)), ValueError, r"at least one token, got shape \(0, 3\)"),
    ([], ValueError, r"points must have 2 axes, got shape \(0,\)"),
    ([[1.0], [-1.0]], ValueError, r"dimension d >= 2, got shape \(2, 1\)"),
    ([[1.0, 0], [1.0]], ValueError, "points must be a rectangular array"),
    ([[1.0, "a"]], TypeError, "points must be a real numeric array, got dtype"),
    (None, TypeError, "points must be a real numeric array, got dtype object"),
    ([[1.0 + 1j, 0]], TypeError, "points must be real, got dtype complex128"),
]

BAD_WEIGHTS = [
    ([0.25] * 3, ValueError, r"weights must have shape \(4,\), got \(3,\)"),
    ([[0.25] * 4], ValueError, r"weights must have 1 axes, got shape \(1, 4\)"),
    ([0.5, 0.5, 0.5, -0.5], ValueError, r"nonnegative, got weights\[3\] = -0\.5"),
    ([0.5, 0.5, 0.5, 0.5], ValueError, r"weights must sum to 1, got 2\.0"),
    ([0.0] * 4, ValueError, r"weights must sum to 1, got 0\.0"),
    ([np.nan, 0.5, 0.25, 0.25], ValueError, r"weights must be finite, got weights\[0\] = nan"),
    (["a"] * 4, TypeError, "weights must be a real numeric array"),
]


@pytest.mark.parametrize(("points", "error", "message"), BAD_POINTS)
def test_bad_points_are_named(points, error, message):
    with pytest.raises(error, match=message):
        TokenCloud(points)


@pytest.mark.parametrize(("weights", "error", "message"), BAD_WEIGHTS)
def test_bad_weights_are_named(weights, error, message):
    with pytest.raises(error, match=message):
        TokenCloud(SQUARE, weights)


def test_a_cloud_cannot_be_changed():
    points, weights = SQUARE.copy(), np.full(4, 0.25)
    cloud = TokenCloud(points, weights)
    with pytest.raises(ValueError, match="read-only"):
        cloud.points[0, 0] = 0
    with pytest.raises(ValueError, match="read-only"):
        cloud.weights[0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        cloud.points = points
    points[0] = [0, 1]
    weights[0] = 0
    assert cloud.points[0, 0] == 1
    assert cloud.weights[0] == 0.25
    assert points.flags.writeable


@pytest.mark.parametrize(
    "dtype", [np.int8, np.int64, np.float16, np.float32, np.float64, np.longdouble]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_real_array_is_accepted(dtype, order):
    cloud = TokenCloud(np.array(SQUARE, dtype=dtype, order=order))
    assert cloud.points.dtype == np.float64
    np.testing.assert_array_equal(cloud.points, SQUARE)


def test_float32_points_and_weights_are_made_exact_in_double():
    rng = np.random.default_rng(0)
    points = sphere.normalize(rng.standard_normal((50, 7))).astype(np.float32)
    weights = rng.dirichlet(np.ones(50)).astype(np.float32)
    cloud = TokenCloud(points, weights)
    assert np.abs(np.linalg.norm(cloud.points, axis=1) - 1).max() <= 4 * EPS
    assert cloud.weights.sum() == pytest.approx(1, abs=4 * EPS)
    np.testing.assert_allclose(cloud.points, points, atol=1e-7)


def test_small_defects_of_mass_and_norm_are_rescaled_and_larger_ones_are_errors():
    cloud = TokenCloud(SQUARE * (1 + 5e-7), np.full(4, 0.25 * (1 + 5e-7)))
    np.testing.assert_array_equal(cloud.points, SQUARE)
    assert cloud.weights.sum() == 1
    with pytest.raises(ValueError, match="unit vectors"):
        TokenCloud(SQUARE * (1 + 2e-6))
    with pytest.raises(ValueError, match="sum to 1"):
        TokenCloud(SQUARE, np.full(4, 0.25 * (1 + 2e-6)))


def test_shapes_defaults_and_repr():
    cloud = TokenCloud(SQUARE)
    assert (cloud.n, cloud.dim) == (4, 2)
    np.testing.assert_array_equal(cloud.weights, 0.25)
    assert repr(cloud) == "TokenCloud(n=4, dim=2, weights=uniform)"
    assert "weights=given" in repr(TokenCloud(SQUARE, [0.4, 0.2, 0.2, 0.2]))
    assert TokenCloud([[1, 0, 0]]).n == 1
    zero = TokenCloud(SQUARE, [0, 0.5, 0.5, 0])
    np.testing.assert_array_equal(zero.weights, [0, 0.5, 0.5, 0])


def test_building_a_cloud_again_changes_no_bit():
    rng = np.random.default_rng(0)
    for n in (3, 50, 5000):
        cloud = TokenCloud(TokenCloud.uniform(n, 3, rng).points, rng.dirichlet(np.ones(n)))
        again = TokenCloud(cloud.points, cloud.weights)
        np.testing.assert_array_equal(again.points, cloud.points)
        np.testing.assert_array_equal(again.weights, cloud.weights)


def test_normalized_divides_by_norms_and_mass():
    cloud = TokenCloud.normalized([[3.0, 4.0], [0, 1e-200], [-1e200, 1e200]], [1, 2, 1])
    np.testing.assert_allclose(
        cloud.points, [[0.6, 0.8], [0, 1], [-(0.5**0.5), 0.5**0.5]], rtol=4 * EPS
    )
    np.testing.assert_allclose(cloud.weights, [0.25, 0.5, 0.25], rtol=EPS)
    with pytest.raises(ValueError, match=r"points\[1\] is zero"):
        TokenCloud.normalized([[1.0, 0], [0, 0]])
    with pytest.raises(ValueError, match="positive sum"):
        TokenCloud.normalized(SQUARE, [0, 0, 0, 0])
    with pytest.raises(ValueError, match=r"nonnegative, got weights\[1\]"):
        TokenCloud.normalized(SQUARE, [1, -1, 1, 1])
    with pytest.raises(ValueError, match="positive sum"):
        TokenCloud.normalized(SQUARE, [-1, -1, -1, -1])


MAKERS = {
    "uniform": lambda n, rng: TokenCloud.uniform(n, 4, rng),
    "von_mises_fisher": lambda n, rng: TokenCloud.von_mises_fisher(n, [0, 3.0, 4.0], 5.0, rng),
    "clustered": lambda n, rng: TokenCloud.clustered(n, [[2.0, 0], [0, -1]], 0.1, rng),
    "cross_polytope": lambda n, rng: TokenCloud.cross_polytope(n, 5, 0.05, rng),
    "octahedral": lambda n, rng: TokenCloud.octahedral(n, 0.05, rng),
    "pentagonal": lambda n, rng: TokenCloud.pentagonal(n, 0.05, rng),
}


@pytest.mark.parametrize("name", MAKERS)
def test_constructors_are_reproducible_and_leave_the_global_state_alone(name):
    maker = MAKERS[name]
    np.random.seed(0)  # noqa: NPY002
    first = np.random.random()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    for n in (1, 13):
        cloud = maker(n, 5)
        assert cloud.n == n
        np.testing.assert_array_equal(cloud.points, maker(n, 5).points)
        np.testing.assert_array_equal(cloud.points, maker(n, np.random.default_rng(5)).points)
        assert not np.array_equal(cloud.points, maker(n, 6).points)
        assert np.ptp(cloud.weights) == 0
    assert np.random.random() == first  # noqa: NPY002
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        maker(0, 1)
    with pytest.raises(TypeError, match=r"n must be an integer, got 2\.5"):
        maker(2.5, 1)


def test_uniform_tokens_are_uniform():
    points = TokenCloud.uniform(20_000, 3, 0).points
    sigma = 1 / np.sqrt(3 * 20_000)
    assert np.abs(points.mean(axis=0)).max() < 4 * sigma
    np.testing.assert_allclose(points.T @ points / 20_000, np.eye(3) / 3, atol=0.01)


@pytest.mark.parametrize("concentration", [0.5, 10.0, 1e8])
def test_von_mises_fisher_tokens_have_the_right_mean(concentration):
    mean = np.array([0.0, 0.6, 0.8])
    cloud = TokenCloud.von_mises_fisher(20_000, 7 * mean, concentration, 0)
    expected = 1 / np.tanh(concentration) - 1 / concentration  # <m, E x> on S^2
    assert cloud.points.mean(axis=0) @ mean == pytest.approx(expected, abs=0.02)


def test_clustered_tokens_go_round_the_centers():
    cloud = TokenCloud.cross_polytope(13, 3, 0.0)
    np.testing.assert_array_equal(cloud.points[:6], np.vstack([np.eye(3), -np.eye(3)]))
    np.testing.assert_array_equal(cloud.points[12], [1, 0, 0])
    noisy = TokenCloud.octahedral(6000, 0.05, 1)
    offset = noisy.points[::6] - [1, 0, 0]
    assert offset[:, 1:].std() == pytest.approx(0.05, rel=0.1)
    pentagon = TokenCloud.pentagonal(5, 0.0).points
    np.testing.assert_allclose(pentagon, sphere.circle_nodes(5), atol=EPS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TokenCloud.uniform(3, 1), "dim must be at least 2, got 1"),
        (lambda: TokenCloud.clustered(3, SQUARE, -1.0), "noise must be positive, got -1"),
        (lambda: TokenCloud.clustered(3, SQUARE, np.nan), "noise must be finite, got nan"),
        (lambda: TokenCloud.clustered(3, np.zeros((0, 3))), "centers must hold at least one"),
        (lambda: TokenCloud.clustered(3, [[1.0, 0], [0, 0]]), r"centers\[1\] is zero"),
        (lambda: TokenCloud.von_mises_fisher(3, [0.0, 0], 1.0), r"mean.* is zero"),
        (lambda: TokenCloud.von_mises_fisher(3, [1.0], 1.0), "mean must have dimension d >= 2"),
        (lambda: TokenCloud.von_mises_fisher(3, [1.0, 0], 0.0), "concentration must be positive"),
    ],
)
def test_constructors_name_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.fixture
def cloud():
    return TokenCloud(TokenCloud.uniform(6, 3, 0).points, np.arange(1, 7) / 21)


def test_files_with_points_alone(tmp_path, cloud):
    np.save(tmp_path / "a.npy", cloud.points)
    np.savez(tmp_path / "b.npz", points=cloud.points)
    np.savetxt(tmp_path / "c.csv", cloud.points, delimiter=",", fmt="%.17g")
    for name in ("a.npy", "b.npz", "c.csv"):
        for path in (tmp_path / name, str(tmp_path / name)):
            read = TokenCloud.from_file(path)
            np.testing.assert_array_equal(read.points, cloud.points)
            assert np.ptp(read.weights) == 0


def test_npz_with_weights(tmp_path, cloud):
    np.savez(tmp_path / "b.npz", points=cloud.points, weights=cloud.weights)
    np.testing.assert_array_equal(TokenCloud.from_file(tmp_path / "b.npz").weights, cloud.weights)


@pytest.mark.parametrize(
    "header", ["x,y,z,weight", "X, Y, Z, Weight", "weight,x,y,z", "x,y,z,weights"]
)
def test_csv_with_weights(tmp_path, cloud, header):
    table = np.column_stack([cloud.points, cloud.weights])
    if header.startswith("weight"):
        table = np.roll(table, 1, axis=1)
    np.savetxt(tmp_path / "c.csv", table, delimiter=",", fmt="%.17g", header=header, comments="")
    read = TokenCloud.from_file(tmp_path / "c.csv")
    np.testing.assert_array_equal(read.points, cloud.points)
    np.testing.assert_allclose(read.weights, cloud.weights, rtol=4 * EPS)


def test_csv_variants(tmp_path, cloud):
    file = tmp_path / "c.csv"
    file.write_text("\ufeffx,y\r\n1,0\r\n\r\n0,1\r\n", encoding="utf-8")
    np.testing.assert_array_equal(TokenCloud.from_file(file).points, [[1, 0], [0, 1]])
    file.write_text("1,0,0\n")
    assert TokenCloud.from_file(file).n == 1


@pytest.mark.parametrize("text", ["", "x,y\n", "\n\n"])
def test_csv_without_tokens(tmp_path, text):
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(ValueError, match="must hold at least one token"):
        TokenCloud.from_file(tmp_path / "c.csv")


def test_files_that_cannot_be_read(tmp_path, cloud):
    np.savez(tmp_path / "b.npz", tokens=cloud.points)
    with pytest.raises(ValueError, match=r"must hold an array 'points', got \['tokens'\]"):
        TokenCloud.from_file(tmp_path / "b.npz")
    with pytest.raises(ValueError, match=r"must end in .npy, .npz or .csv, got .*a\.txt"):
        TokenCloud.from_file(tmp_path / "a.txt")
    with pytest.raises(FileNotFoundError):
        TokenCloud.from_file(tmp_path / "absent.npy")
    np.save(tmp_path / "o.npy", np.array([None, 1]), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        TokenCloud.from_file(tmp_path / "o.npy")
    (tmp_path / "c.csv").write_text("1,0\n0,a\n")
    with pytest.raises(ValueError, match="could not convert string 'a'"):
        TokenCloud.from_file(tmp_path / "c.csv")
    (tmp_path / "c.csv").write_text("1,0\n2,0\n")
    with pytest.raises(ValueError, match=r"unit vectors, got \|points\[1\]\| = 2"):
        TokenCloud.from_file(tmp_path / "c.csv")
