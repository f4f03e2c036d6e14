"""What the tests share: a naive second implementation of the model, and problem makers."""

from __future__ import annotations

import os
from dataclasses import dataclass

# tests run in several processes, each of which must not start a thread per core of its own
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import settings
from jko import AttentionModel, Heads, TokenCloud

settings.register_profile("suite", deadline=None, max_examples=25, derandomize=True, database=None)
settings.load_profile("suite")


@dataclass(frozen=True)
class Naive:
    """The formulas of the model with full (H, m, n) arrays and no care for overflow."""

    points: np.ndarray
    weights: np.ndarray
    matrices: np.ndarray
    head_weights: np.ndarray
    sign: int = 1

    def kernel(self, at):
        return np.exp(np.einsum("md,hde,ne->hmn", at, self.matrices, self.points))

    def head_mobility(self, at):
        return self.kernel(at) @ self.weights

    def effective_mobility(self, at):
        return 1 / (self.head_weights @ (1 / self.head_mobility(at)))

    def first_variation(self, at):
        return self.sign * self.head_weights @ self.head_mobility(at)

    def head_gradients(self, at):
        """``P_x int D_h y exp<x, D_h y> dmu``, shape (H, m, d)."""
        moved = np.einsum("hde,ne->hnd", self.matrices, self.points)
        ambient = np.einsum("hmn,n,hnd->hmd", self.kernel(at), self.weights, moved)
        return ambient - np.einsum("hmd,md->hm", ambient, at)[..., None] * at

    def gradient(self, at):
        return self.sign * np.einsum("h,hmd->md", self.head_weights, self.head_gradients(at))

    @property
    def energy(self):
        return 0.5 * self.weights @ self.first_variation(self.points)

    def energy_time_derivative(self, derivative):
        x = self.points
        scores = np.einsum("md,hde,ne->hmn", x, derivative, x) * self.kernel(x)
        total = np.einsum("h,hmn,m,n->", self.head_weights, scores, self.weights, self.weights)
        return 0.5 * self.sign * total

    def velocity(self, kind):
        x = self.points
        if kind == "gradient":
            return -self.gradient(x) / self.effective_mobility(x)[:, None]
        share = self.head_weights[:, None] / self.head_mobility(x)
        return -self.sign * np.einsum("hm,hmd->md", share, self.head_gradients(x))

    def speed_squared(self, v):
        return self.weights @ (self.effective_mobility(self.points) * (v**2).sum(axis=1))

    @property
    def slope_squared(self):
        p = self.gradient(self.points)
        return self.weights @ ((p**2).sum(axis=1) / self.effective_mobility(self.points))

    @property
    def defect_rate(self):
        return 0.5 * self.speed_squared(self.velocity("softmax") - self.velocity("gradient"))


def _naive(model: AttentionModel, cloud: TokenCloud, t: float = 0.0) -> Naive:
    heads = model.path(t)
    return Naive(cloud.points, cloud.weights, heads.matrices, heads.weights, model.sign)


def _random_problem(seed, n=12, dim=3, heads=3, sign=1, size=1.0, weighted=False):
    """A model with Gaussian symmetric heads (Z + Z^T)/2 times ``size``, and a uniform cloud."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((heads, dim, dim))
    token_weights = rng.dirichlet(np.ones(n)) if weighted else None
    head_weights = rng.dirichlet(np.ones(heads)) if weighted else None
    matrices = size * (z + z.transpose(0, 2, 1)) / 2
    model = AttentionModel(Heads(matrices, head_weights), sign)
    return model, TokenCloud(TokenCloud.uniform(n, dim, rng).points, token_weights)


def _convex_problem(seed, n=150, dim=3, heads=3):
    """Heads A A^T / 2: positive semidefinite, so that the energy is convex in the measure."""
    rng = np.random.default_rng(seed)
    cloud = TokenCloud.uniform(n, dim, rng)
    a = rng.standard_normal((heads, dim, dim))
    return AttentionModel(Heads(a @ a.transpose(0, 2, 1) / 2)), cloud


def _rotation(dim, seed):
    """A Haar-distributed orthogonal matrix."""
    q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((dim, dim)))
    return q * np.sign(np.diag(r))


@pytest.fixture(scope="session")
def naive():
    return _naive


@pytest.fixture(scope="session")
def random_problem():
    return _random_problem


@pytest.fixture(scope="session")
def convex_problem():
    return _convex_problem


@pytest.fixture(scope="session")
def rotation():
    return _rotation
