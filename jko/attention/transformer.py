r"""Weight paths of trained transformers.

Head ``h`` of a layer scores the tokens X (query) and Y (key) by
:math:`\langle W_Q^h X, W_K^h Y\rangle / \sqrt{d_h}`.  Layer normalisation puts them on a sphere of radius
``r``: with :math:`X = r x`, :math:`Y = r y`

.. math::

    \text{score} = \langle x, A_h y\rangle, \qquad A_h = \frac{r^2}{\sqrt{d_h}} (W_Q^h)^T W_K^h,
    \qquad D_h = \tfrac12 (A_h + A_h^T).

The theory needs the symmetric :math:`D_h`; what dropping :math:`\frac12(A_h - A_h^T)` changes is
measured in the `TransformerReport` that comes with the path.  Heads have rank at most :math:`2 d_h`
and are kept as factors.

The value matrices.  A layer adds :math:`\sum_h W_O^h W_V^h m_h(x)` to a token, with the softmax
mean :math:`m_h`.  The flows here move it along :math:`\mp\sum_h w_h D_h m_h(x)`, projected on the
tangent space: they are the transformer whose value matrices :math:`W_O^h W_V^h` are multiples of
:math:`\mp D_h`.  ``sign = -1`` is the attractive case: tokens move *up* the gradients of
:math:`\log b_h`.  Which sign, if any, a checkpoint is near to is measured too
(``value_alignment``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from .._validation import finite_array, frozen, positive_integer, require_unit
from ..measures import TokenCloud
from .checkpoint import BERT_NAMES, Checkpoint, attention_matrices
from .factored import FactoredHeads, FactoredPath, symmetric_product

if TYPE_CHECKING:
    from .lowrank import LowRankModel

__all__ = ["BERT_NAMES", "TransformerPath", "TransformerReport", "from_transformer"]

Array = NDArray[np.float64]

LEFT_OUT = (
    "the biases of query and key",
    "the value and output matrices (only compared with the heads)",
    "layer-norm gains and biases beyond the one radius per layer",
    "the feed-forward layers",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class TransformerReport:
    r"""What became of a checkpoint: arrays over its L layers and H heads.

    Attributes
    ----------
    head_dim : int
        Rows :math:`d_h` of a query or key matrix.
    radius : (L,)
        Radius ``r`` of the tokens' sphere.
    scale : (L,)
        :math:`r^2 / \sqrt{d_h}`.
    extremes : (L, H, 2)
        Smallest and largest eigenvalue of :math:`D_h`.
    antisymmetric_part : (L, H)
        :math:`|A - A^T|_F / (2 |A|_F)`: 0 for a symmetric head, :math:`1/\sqrt2` for two unrelated matrices,
        1 for an antisymmetric one.
    score_change : (L, H) or None
        At the given tokens, the root mean square of what symmetrising changes in the scores over that
        of the scores, both up to a constant per query, which softmax does not see.
    attention_change : (L, H) or None
        Total variation between the rows of attention before and after, mean over the tokens: 0 to 1.
    value_alignment : (L, H) or None
        Cosine (Frobenius) between :math:`W_O^h W_V^h` and :math:`D_h`: 1 is the attractive flow, -1 the
        repulsive one; unrelated matrices give about ``1/d``.
    layer_time : (L,) or None
        Time in which the flow's :math:`w_h D_h` have the size of the checkpoint's
        :math:`W_O^h W_V^h`: :math:`(\sum_h|W_O^h W_V^h|_F^2 / \sum_h |w_h D_h|_F^2)^{1/2}`.
    left_out : tuple of str
        What the path does not know of the network.
    """

    head_dim: int
    radius: Array
    scale: Array
    extremes: Array
    antisymmetric_part: Array
    score_change: Array | None
    attention_change: Array | None
    value_alignment: Array | None
    layer_time: Array | None
    left_out: tuple[str, ...] = LEFT_OUT

    def __repr__(self) -> str:
        layers, heads = self.antisymmetric_part.shape
        rows = [f"TransformerReport: {layers} layers, {heads} heads of {self.head_dim} rows"]
        columns = {
            "antisymmetric part": self.antisymmetric_part,
            "change of scores": self.score_change,
            "change of attention": self.attention_change,
            "value alignment": self.value_alignment,
            "largest |eigenvalue|": np.abs(self.extremes).max(axis=2),
        }
        titles = (f"  layer {n:<11}" for n in range(layers))
        rows.append(f"  {'over the heads':<22}" + "".join(titles))
        for name, array in columns.items():
            if array is not None:
                cells = (f"{a.min():.3g} .. {a.max():.3g}" for a in array)
                rows.append(f"  {name:<22}" + "".join(f"  {cell:<17}" for cell in cells))
        rows += [f"  left out: {item}" for item in self.left_out]
        return "\n".join(rows)


class TransformerPath(FactoredPath):
    """Heads of a trained transformer at layer times, linear in between; made by `from_transformer`.

    Attributes
    ----------
    times : (L,)
    matrices : (L, H, d, d)
        Formed when asked for.
    left, right : (L, H, d_h, d)
        ``scale * W_Q`` and ``W_K``.
    weights : (H,)
    report : TransformerReport
    """

    def __init__(
        self,
        times: ArrayLike,
        left: ArrayLike,
        right: ArrayLike,
        weights: ArrayLike | None = None,
        *,
        report: TransformerReport,
    ) -> None:
        super().__init__(times, left, right, weights)
        self.report = report

    def model(self, sign: int = -1) -> LowRankModel:
        """The fast model on this path; ``sign = -1``, attractive, by default here."""
        # the model imports the weight paths
        from .lowrank import LowRankModel

        return LowRankModel(self, sign)


def from_transformer(
    checkpoint: Checkpoint | None = None,
    *,
    heads: int,
    query: ArrayLike | None = None,
    key: ArrayLike | None = None,
    value: ArrayLike | None = None,
    output: ArrayLike | None = None,
    names: Mapping[str, str] = BERT_NAMES,
    times: ArrayLike | None = None,
    radius: ArrayLike | None = None,
    tokens: TokenCloud | ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> TransformerPath:
    r"""The heads :math:`D_h = r^2\,\mathrm{sym}((W_Q^h)^T W_K^h)/\sqrt{d_h}` of a checkpoint, layer by layer.

    Parameters
    ----------
    checkpoint : path or mapping of str to array_like, optional
        A safetensors file, its directory, or tensors by name.
    heads : int
        Number of heads H; the rows of the query matrices are H blocks of :math:`d_h`.
    query, key : (L, H d_h, d) array_like, optional
        Instead of a checkpoint, rows as ``torch.nn.Linear`` stores them (``q = W x``).
    value, output : (L, H d_h, d) and (L, d, H d_h) array_like, optional
        Only compared with the heads.
    names : mapping
        Names of the tensors ``query`` and ``key``, if need be ``value`` and ``output``, with
        ``{layer}`` for the number.
    times : (L,) array_like, optional
        Layer times; ``0, 1, ..., L - 1`` by default.  ``report.layer_time`` suggests others.
    radius : float or (L,) array_like, optional
        Radius of the tokens' sphere in every layer; :math:`\sqrt d`, that of a layer norm without
        gain, by default.  To take a gain ``g`` into account exactly give ``query * g`` and ``key * g``.
    tokens : TokenCloud, (n, d) or (L, n, d) array_like, optional
        Unit vectors at which the effect of symmetrising is measured, the same in all layers or not.
    weights : (H,) array_like, optional
        Head weights, uniform by default.

    Returns
    -------
    TransformerPath
        With its ``report``.

    Raises
    ------
    ValueError, TypeError
        Naming the tensors that are missing or misshapen, or the argument that is wrong.
    ImportError
        For a file, where safetensors is not installed.
    """
    given = {"query": query, "key": key, "value": value, "output": output}
    stacks = attention_matrices(checkpoint, names, given)
    heads = positive_integer(heads, "heads")
    head_dim = _check_shapes(stacks, heads)
    layers, _, dim = stacks["query"].shape
    split = {
        role: stack.reshape(layers, heads, head_dim, dim)
        for role, stack in stacks.items()
        if role != "output"
    }
    radii = _radii(radius, layers, dim)
    scale = radii**2 / np.sqrt(head_dim)
    left = scale[:, None, None, None] * split["query"]
    shares = FactoredHeads(left[0], split["key"][0], weights).weights
    part, change, attention = _symmetry(left, split["key"], _report_tokens(tokens, layers, dim))
    alignment, time = _values(left, split["key"], split.get("value"), stacks.get("output"), shares)
    report = TransformerReport(
        head_dim=head_dim,
        radius=frozen(radii),
        scale=frozen(scale),
        extremes=_extremes(left, split["key"]),
        antisymmetric_part=part,
        score_change=change,
        attention_change=attention,
        value_alignment=alignment,
        layer_time=time,
    )
    when = np.arange(layers, dtype=float) if times is None else times
    return TransformerPath(when, left, split["key"], weights, report=report)


def _check_shapes(stacks: Mapping[str, Array], heads: int) -> int:
    """Rows per head, once all shapes fit each other."""
    layers, rows, dim = stacks["query"].shape
    for role, stack in stacks.items():
        expected = (layers, dim, rows) if role == "output" else (layers, rows, dim)
        if stack.shape != expected:
            raise ValueError(
                f"{role} must have shape {expected} to fit query of shape {stacks['query'].shape}, "
                f"got {stack.shape}"
            )
    if 0 in stacks["query"].shape or dim < 2:
        raise ValueError(f"query must not be empty and have d >= 2, got {stacks['query'].shape}")
    if rows % heads:
        raise ValueError(f"heads must divide the {rows} rows of query, got {heads}")
    return rows // heads


def _radii(radius: ArrayLike | None, layers: int, dim: int) -> Array:
    value = np.sqrt(dim) if radius is None else radius
    array = finite_array(value, "radius", np.ndim(value))
    if array.shape not in ((), (layers,)) or (array <= 0).any():
        raise ValueError(f"radius must be positive, one number or one per layer, got {radius!r}")
    return np.full(layers, array)


def _report_tokens(
    tokens: TokenCloud | ArrayLike | None, layers: int, dim: int
) -> Array | None:
    """Unit vectors (L, n, d), or nothing."""
    if tokens is None:
        return None
    raw = tokens.points if isinstance(tokens, TokenCloud) else tokens
    array = finite_array(raw, "tokens", 2 if np.ndim(raw) == 2 else 3)
    if array.shape[-1] != dim or array.shape[:-2] not in ((), (layers,)):
        raise ValueError(
            f"tokens must have shape (n, {dim}) or ({layers}, n, {dim}), got {array.shape}"
        )
    require_unit(array.reshape(-1, dim), "tokens")
    return np.broadcast_to(array, (layers, *array.shape[-2:]))


def _extremes(left: Array, right: Array) -> Array:
    values = np.stack([FactoredHeads(*pair).eigenvalues for pair in zip(left, right, strict=True)])
    return frozen(values[..., [0, -1]])


def _symmetry(
    left: Array, right: Array, tokens: Array | None
) -> tuple[Array, Array | None, Array | None]:
    """How far from symmetric, and what symmetrising does at the tokens; one head at a time."""
    part, change, attention = np.zeros((3, *left.shape[:2]))
    for k, h in np.ndindex(*part.shape):
        product = left[k, h].T @ right[k, h]
        skew = (product - product.T) / 2
        part[k, h] = _ratio(skew, product)
        if tokens is not None:
            x = tokens[k]
            scores, lost = x @ product @ x.T, x @ skew @ x.T
            change[k, h] = _ratio(lost - lost.mean(axis=1, keepdims=True),
                                  scores - scores.mean(axis=1, keepdims=True))  # fmt: skip
            moved = softmax(scores, axis=1) - softmax(scores - lost, axis=1)
            attention[k, h] = np.abs(moved).sum(axis=1).mean() / 2
    if tokens is None:
        return frozen(part), None, None
    return frozen(part), frozen(change), frozen(attention)


def _ratio(part: Array, whole: Array) -> float:
    """Ratio of Frobenius norms; zero over zero is zero."""
    size = np.linalg.norm(whole)
    return float(np.linalg.norm(part) / size) if size > 0 else 0.0


def _values(
    left: Array, right: Array, value: Array | None, output: Array | None, weights: Array
) -> tuple[Array | None, Array | None]:
    """The value matrices beside the heads; one head at a time."""
    if value is None or output is None:
        return None, None
    layers, heads, rows = left.shape[:3]
    alignment, ours, theirs = np.zeros((3, layers, heads))
    for k, h in np.ndindex(layers, heads):
        circuit = output[k][:, h * rows : (h + 1) * rows] @ value[k, h]
        head = symmetric_product(left[k, h], right[k, h])
        ours[k, h], theirs[k, h] = np.linalg.norm(head), np.linalg.norm(circuit)
        size = ours[k, h] * theirs[k, h]
        alignment[k, h] = (circuit * head).sum() / size if size > 0 else 0.0
    own = np.linalg.norm(weights * ours, axis=1)
    sizes, never = np.linalg.norm(theirs, axis=1), np.full(layers, np.inf)
    time = np.divide(sizes, own, out=never, where=own > 0)
    return frozen(alignment), frozen(time)
