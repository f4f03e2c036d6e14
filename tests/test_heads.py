"""Heads: validation, symmetry, spectra, constructors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud

SYMMETRIC = np.array([[2.0, 1.0], [1.0, -1.0]])

BAD = [
    (
        [[1.0, np.nan], [np.nan, 1.0]],
        ValueError,
        r"matrices must be finite, got matrices\[0, 0, 1\] = nan",
    ),
    (np.zeros((2, 3, 4)), ValueError, r"shape \(H, d, d\) with H >= 1 and d >= 2, got \(2, 3, 4\)"),
    (np.zeros((0, 3, 3)), ValueError, r"got \(0, 3, 3\)"),
    (np.zeros((3, 1, 1)), ValueError, r"d >= 2, got \(3, 1, 1\)"),
    (np.zeros(3), ValueError, r"matrices must have 3 axes, got shape \(3,\)"),
    (np.zeros((1, 1, 2, 2)), ValueError, r"matrices must have 3 axes"),
    ([[1.0, 2.0], [2.0]], ValueError, "matrices must be a rectangular array"),
    ([["a", "b"], ["b", "a"]], TypeError, "matrices must be a real numeric array"),
    (1j * np.eye(2), TypeError, "matrices must be real, got dtype complex128"),
]


@pytest.mark.parametrize(("matrices", "error", "message"), BAD)
def test_bad_matrices_are_named(matrices, error, message):
    with pytest.raises(error, match=message):
        Heads(matrices)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], r"weights must have shape \(2,\), got \(1,\)"),
        ([1.5, -0.5], r"weights\[1\] = -0\.5"),
        ([0.5, 0.4], "weights must sum to 1, got 0.9"),
        ([np.inf, 0], r"weights\[0\] = inf"),
    ],
)
def test_bad_weights_are_named(weights, message):
    with pytest.raises(ValueError, match=message):
        Heads([SYMMETRIC, SYMMETRIC], weights)


def test_asymmetry_is_an_error_that_says_what_symmetrising_changes():
    skew = np.array([[0.0, 0.3], [-0.3, 0.0]])
    with pytest.raises(ValueError, match="symmetric") as caught:
        Heads([SYMMETRIC, SYMMETRIC + skew])
    text = str(caught.value)
    assert text.startswith("matrices[1] must be symmetric, its antisymmetric part reaches 0.3.")
    assert "Heads.symmetrized" in text
    assert "(D + D^T)/2" in text
    assert "another" in text
    symmetrised = Heads.symmetrized([SYMMETRIC, SYMMETRIC + skew])
    np.testing.assert_allclose(symmetrised.matrices, [SYMMETRIC, SYMMETRIC], atol=1e-16)


def test_rounding_of_symmetry_is_repaired():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((3, 5, 5)).astype(np.float32)
    product = a @ a.transpose(0, 2, 1)
    product[0, 0, 1] *= 1 + 2e-7
    heads = Heads(product)
    np.testing.assert_array_equal(heads.matrices, heads.matrices.transpose(0, 2, 1))
    assert heads.matrices.dtype == np.float64


def test_heads_cannot_be_changed():
    matrices = np.stack([SYMMETRIC, np.eye(2)])
    heads = Heads(matrices, [0.25, 0.75])
    for array in (heads.matrices, heads.weights, heads.eigenvalues):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        heads.weights = matrices
    matrices[:] = 0
    np.testing.assert_array_equal(heads.matrices[0], SYMMETRIC)


def test_single_matrix_and_integers():
    heads = Heads([[2, 1], [1, -1]])
    assert (heads.count, heads.dim) == (1, 2)
    np.testing.assert_array_equal(heads.matrices[0], SYMMETRIC)
    np.testing.assert_array_equal(heads.weights, [1.0])
    assert repr(heads) == "Heads(count=1, dim=2, max_norm=2.303)"


def test_norms_and_definiteness():
    heads = Heads([np.diag([3.0, -4.0]), np.diag([1.0, 0.0])])
    np.testing.assert_allclose(heads.norms, [4, 1])
    np.testing.assert_allclose(heads.eigenvalues, [[-4, 3], [0, 1]])
    assert not heads.positive_semidefinite
    assert Heads(heads.matrices, [0, 1]).positive_semidefinite
    assert Heads(np.zeros((2, 3, 3))).positive_semidefinite
    assert Heads(np.zeros((2, 3, 3))).vanish
    assert not heads.vanish
    assert Heads([np.zeros((2, 2)), SYMMETRIC], [1, 0]).vanish
    # rank-one products are semidefinite although rounding gives tiny negative eigenvalues
    rng = np.random.default_rng(1)
    for _ in range(50):
        a = 1e3 * rng.standard_normal((4, 1))
        assert Heads(a @ a.T).positive_semidefinite
    assert not Heads(np.diag([1.0, -1e-10])).positive_semidefinite


def test_gaussian_heads_are_z_plus_its_transpose():
    z = np.random.default_rng(3).standard_normal((2, 4, 4))
    np.testing.assert_array_equal(Heads.gaussian(2, 4, 3).matrices, z + z.transpose(0, 2, 1))
    sample = Heads.gaussian(20_000, 3, 0).matrices
    assert sample[:, 0, 1].var() == pytest.approx(2, rel=0.05)
    assert sample[:, 0, 0].var() == pytest.approx(4, rel=0.05)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        Heads.gaussian(0)
    with pytest.raises(ValueError, match="dim must be at least 2, got 1"):
        Heads.gaussian(1, 1)


def test_symmetrized_refuses_what_is_not_square():
    with pytest.raises(ValueError, match="square"):
        Heads.symmetrized([[1.0, 2.0]])
    with pytest.raises(ValueError, match="square"):
        Heads.symmetrized(np.zeros((3, 1, 2)))


def test_a_head_of_weight_zero_is_not_felt():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2, 3, 3))
    matrices = a + a.transpose(0, 2, 1)
    cloud = TokenCloud.uniform(9, 3, 1)
    one, two = AttentionModel(Heads(matrices[:1])), AttentionModel(Heads(matrices, [1, 0]))
    assert two.energy(cloud, 0) == pytest.approx(one.energy(cloud, 0), rel=1e-15)
    for kind in ("gradient", "softmax"):
        np.testing.assert_allclose(
            two.velocity(cloud, 0, kind), one.velocity(cloud, 0, kind), atol=1e-15
        )
    assert two.defect_rate(cloud, 0) == pytest.approx(0, abs=1e-30)
