"""Lengths of weight paths and the verdict whether they stay finite."""

from __future__ import annotations

import numpy as np
import pytest
from jko import Heads
from jko.attention.weights import FromFunction, Frozen, Interpolated, OrnsteinUhlenbeck
from jko.diagnostics.integrability import (
    Integrability,
    classify_length,
    doubling_times,
    head_distance,
    head_speed,
    integrability,
    law_integrability,
    path_length,
)
from jko.diagnostics.limits import ManyHeads, article_model, decaying_path
from scipy.integrate import quad

BASE = Heads.gaussian(2, 3, 0)


def power_path(p):
    """Speed ``(1 + t)^-p`` times a constant."""
    direction = np.eye(3)[None] / np.sqrt(3)

    def at(t):
        amount = np.log1p(t) if p == 1 else ((1 + t) ** (1 - p) - 1) / (1 - p)
        return Heads(amount * direction)

    return FromFunction(at, lambda t: (1 + t) ** -p * direction)


def test_length_of_known_paths():
    times = [0.0, 0.3, 2.0]
    np.testing.assert_allclose(
        path_length(power_path(2), times), [0, 1 - 1 / 1.3, 2 / 3], atol=1e-7
    )
    deviation = Heads.gaussian(2, 3, 1).matrices
    size = np.sqrt((deviation**2).sum(axis=(1, 2)).mean())
    decaying = path_length(decaying_path(BASE, deviation), times)
    np.testing.assert_allclose(decaying, size * -np.expm1(-np.array(times)), rtol=1e-9)
    assert not path_length(Frozen(BASE), times).any()


def test_speed_weighs_the_heads():
    matrices = np.stack([BASE.matrices, BASE.matrices + np.array([3.0, 4.0])[:, None, None]])
    path = Interpolated([0.0, 1.0], matrices, [0.9, 0.1])
    assert head_speed(path, 0.5) == pytest.approx(3 * np.sqrt(0.9 * 9 + 0.1 * 16))
    assert path_length(path, [0.25, 1.0]) == pytest.approx(head_speed(path, 0.5) * np.array([0.25, 1]))


def test_piecewise_linear_paths_by_both_ways():
    path = OrnsteinUhlenbeck(BASE, horizon=1.0, base_step=0.05, rng=2)
    exact = path_length(path, [0.33, 1.0])
    general = path_length(FromFunctionWithKinks(path), [0.33, 1.0])
    np.testing.assert_allclose(exact, general, rtol=1e-12)
    with pytest.raises(ValueError, match="domain of the path"):
        path_length(path, [0.5, 1.5])


class FromFunctionWithKinks(FromFunction):
    """A path that says where it bends, but not that it is piecewise linear."""

    def __init__(self, path):
        super().__init__(path, path.derivative)
        self.breakpoints = path.breakpoints


@pytest.mark.parametrize(
    ("p", "verdict"),
    [(0, "NOT_INTEGRABLE"), (0.5, "NOT_INTEGRABLE"), (1, "UNDECIDED"), (1.5, "INTEGRABLE")],
)
def test_verdict_follows_the_decay_of_the_speed(p, verdict):
    length = integrability(power_path(p), 256.0)
    assert length.verdict is Integrability[verdict]
    assert length.decay == pytest.approx(p, abs=0.02)


@pytest.mark.parametrize(
    ("regime", "verdict"),
    [
        ("frozen", "INTEGRABLE"),
        ("decaying", "INTEGRABLE"),
        ("oscillating", "NOT_INTEGRABLE"),
        ("ornstein-uhlenbeck", "NOT_INTEGRABLE"),
    ],
)
def test_verdicts_of_the_regimes(regime, verdict):
    length = integrability(article_model(regime, 2, 3, 16.0, 0).path, 16.0)
    assert length.verdict is Integrability[verdict]


def test_the_ornstein_uhlenbeck_law_has_finite_length():
    length = law_integrability(ManyHeads(), 32.0)
    assert length.verdict is Integrability.INTEGRABLE
    total = quad(ManyHeads().wasserstein_speed, 0, 60, epsabs=1e-12)[0]
    assert length.lengths[-1] == pytest.approx(total, abs=1e-9)
    # the laws themselves: never longer than mean and spread apart, never shorter than both
    assert np.hypot(np.sqrt(3), np.sqrt(6)) < total < np.sqrt(3) + np.sqrt(6)


def test_head_distance_forgets_labels():
    swapped = Interpolated([0.0, 1.0], np.stack([BASE.matrices, BASE.matrices[::-1]]))
    assert head_distance(swapped, 0.0, 1.0) == pytest.approx(0, abs=1e-12)
    assert path_length(swapped, [1.0])[0] > 1


def test_refusals():
    with pytest.raises(ValueError, match="times must be increasing"):
        path_length(Frozen(BASE), [1.0, 0.5])
    with pytest.raises(ValueError, match="at least 3 times, got 2"):
        classify_length([1, 2], [1, 2])
    with pytest.raises(ValueError, match="times must double"):
        classify_length([1, 2, 3], [1, 2, 3])
    with pytest.raises(ValueError, match="horizon must be positive"):
        doubling_times(-1.0)
