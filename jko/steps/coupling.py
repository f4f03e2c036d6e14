r"""The part of a step's Hessian that couples tokens, through images of a few smooth functions.

Per unit mass the Hessian of the energy maps a displacement ``v``, beyond its diagonal blocks, to

.. math::

    (C v)_i = P_i \sum_h w_h D_h \Big[\sum_j a_j K^h_{ij} v_j
        + \Big(\sum_j a_j K^h_{ij}\, y_j v_j^T\Big) D_h y_i\Big], \qquad K^h_{ij} = e^{\langle y_i, D_h y_j\rangle}.

The sums of a kernel pass *are* the images :math:`F = K A \Phi` of the polynomials
:math:`\Phi = (1, y, y y^T)` under every head's kernel.  From these,
:math:`K \approx F (\Phi^T A F)^{+} F^T` (Nyström), exact on the polynomials, and a product with C costs
``O(n H d^4)`` instead of a kernel pass.  Sums over tokens add up over shards.
"""

from __future__ import annotations

from copy import copy

import numpy as np
from numpy.typing import NDArray

from ..attention.fields import Fields
from ..attention.heads import Heads
from ..attention.kernel import moment_payload

__all__ = ["COUPLED_TOKENS", "TokenCoupling", "worth_coupling"]

Array = NDArray[np.float64]

#: Tokens up to which the images are kept: ``H (d^2 + 3 d) / 2`` numbers each.
COUPLED_TOKENS = 50_000

#: Norm of the heads up to which quadratic polynomials tell enough of their kernels.
COUPLED_NORM = 10.0

#: Dimension up to which the quadratic polynomials are used.
QUADRATIC_DIMENSION = 3

#: Eigenvalues of the small matrices far below this share of their norm count as zero.
CUTOFF = 1e-6


def worth_coupling(count: int, heads: Heads) -> bool:
    """Whether steps of ``count`` tokens are solved in fewer passes, and memory, with the coupling."""
    return count <= COUPLED_TOKENS and bool(heads.norms.max() <= COUPLED_NORM)


class TokenCoupling:
    r"""Products with the coupling at the points of one pass, in two halves around a sum over tokens.

    Parameters
    ----------
    fields : Fields
        Of order 2, at tokens; without shifts.
    weights : (n,)
        Their weights.

    Attributes
    ----------
    gram : (H, r, r)
        What these tokens add to :math:`\Phi^T A F`.
    """

    def __init__(self, fields: Fields, weights: Array) -> None:
        points, totals = fields.at, fields.sums.totals
        payload = moment_payload(points, weights, 2)
        dim = points.shape[1]
        # the trace of y y^T is one: its last entry says nothing new
        rank = payload.shape[1] - 1 if dim <= QUADRATIC_DIMENSION else 1 + dim
        # (1, y), with the masses and without
        self._weighted = payload[:, : 1 + dim]
        self._extended = np.concatenate([np.ones((points.shape[0], 1)), points], axis=1)
        self._images = totals[..., :rank].swapaxes(0, 1).reshape(points.shape[0], -1)
        products = (payload[:, :rank].T @ self._images).reshape(rank, -1, rank)
        self.gram: Array = products.swapaxes(0, 1)
        self._inner: Array | None = None
        self._maps = fields.heads.displacements
        self._scale = fields.sign * fields.heads.weights[:, None, None]

    def completed(self, gram: Array) -> TokenCoupling:
        """The same with the sum of all tokens' ``gram``, inverted where it is not small."""
        gram = (gram + gram.swapaxes(1, 2)) / 2
        small = (CUTOFF * np.sqrt(np.einsum("hij,hij->h", gram, gram)))[:, None, None]
        eye = np.eye(gram.shape[1])
        # indefinite heads have indefinite kernels: G / (G^2 + s^2), not 1 / (G + s)
        floor = np.where(small > 0, small, 1.0) ** 2
        whole = copy(self)
        whole._inner = self._scale * np.linalg.solve(gram @ gram + floor * eye, gram)
        return whole

    def collect(self, v: Array) -> Array:
        """What these tokens add to :math:`F^T A (v, v y^T)` for v (n, d), shape (H r, d (1 + d))."""
        moved = v[:, :, None] * self._weighted[:, None, :]
        return self._images.T @ moved.reshape(v.shape[0], -1)

    def spread(self, sums: Array) -> Array:
        """The product at these tokens from the sum of what all of them collected, shape (n, d).

        Ambient vectors, to be projected on the tangent spaces.
        """
        if self._inner is None:
            raise RuntimeError("the coupling was not completed")
        sums = self._inner @ sums.reshape(*self._inner.shape[:2], -1) @ self._maps
        total = self._images @ sums.reshape(self._images.shape[1], -1)
        shape = *self._extended.shape, -1
        return np.einsum("nk,nki->ni", self._extended, total.reshape(shape))
