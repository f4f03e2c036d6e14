"""Configurations: what they build, and that every error names table, key and value."""

import tomllib

import numpy as np
import pytest
from jko import Heads, TokenCloud, weights
from jko.config import (
    ConfigError,
    build_cloud,
    build_model,
    example_config,
    flow_options,
    load_config,
    movement_options,
    parse_config,
)
from jko.problems import article_sphere

BASE = """
[cloud]
constructor = "uniform"
n = 9

[weights]
path = "frozen"
heads = { kind = "gaussian", count = 2 }

[run]
horizon = 0.5
step = 0.1
"""


def test_example_is_the_article_s_case():
    config = parse_config(example_config())
    cloud = build_cloud(config)
    model = build_model(config, cloud)
    known = article_sphere()
    assert cloud.n == known.cloud.n == 200
    assert cloud.points.tobytes() == TokenCloud.octahedral(200, 0.05, 0).points.tobytes()
    assert type(model.path) is type(known.model.path)
    assert model.path.times.tolist() == known.model.path.times.tolist()
    assert model.path.matrices.shape == known.model.path.matrices.shape
    assert model.path.variance == known.model.path.variance
    heads = Heads.gaussian(10, 3, 1)
    path = weights.OrnsteinUhlenbeck(heads, horizon=5.0, variance=2.0, base_step=0.005, rng=2)
    assert model.path.matrices.tobytes() == path.matrices.tobytes()
    assert movement_options(config)["t_span"] == (0.0, 5.0)
    assert movement_options(config)["step"] == known.step


def test_example_s_commented_defaults_are_the_defaults():
    """Uncommenting what the example calls a default changes nothing."""
    commented = {"scale", "evaluator", "cost", "tolerance", "certify", "rtol", "write_every"}
    lines = example_config().splitlines()
    shown = [line[2:] if line[2:].split(" ")[0] in commented else line for line in lines]
    assert len(tomllib.loads("\n".join(shown))["run"]) > len(
        tomllib.loads(example_config())["run"]
    )
    assert parse_config("\n".join(shown)) == parse_config(example_config())


def build(text):
    config = parse_config(text, "run.toml")
    return build_model(config, build_cloud(config))


def errors_of(text):
    with pytest.raises(ConfigError) as caught:
        build(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("step = 0.1", "stepp = 0.1", "unknown key 'stepp' in [run]; did you mean 'step'?"),
        ("[run]", "[ruun]", "unknown table [ruun]; did you mean 'run'?"),
        ("[run]", "[ruun]", "missing table [run]"),
        ("n = 9", "n = 9\nhorizon = 1.0", "unknown key 'horizon' in [cloud]; it belongs in [run]"),
        ("n = 9", "n = 9\nnoise = 0.1", "unknown key 'noise' in [cloud]; it belongs to constructor = 'clus"),
        ("n = 9", "n = 9\nhue = 1", "unknown key 'hue' in [cloud]; known are constructor, n"),
        (
            '"frozen"',
            '"oscillating"\nvariance = 1.0',
            "unknown key 'variance' in [weights]; it belongs to path = 'ornstein_uhlenbeck'",
        ),
        (
            "count = 2",
            "count = 2, matrices = [[[1.0]]]",
            "unknown key 'matrices' in [weights.heads]; it belongs to kind = 'matrices'",
        ),
        (
            "[run]",
            "[converge]\nsteps = [0.1]\n[run]",
            "converge.steps must have at least 2 items, got [0.1]",
        ),
        ("horizon = 0.5", "t_span = [0.0, 0.5, 1.0]", "run.t_span must have at most 2 items, got"),
        ("count = 2", "cuont = 2", "unknown key 'cuont' in [weights.heads]; did you mean 'count'?"),
        ("count = 2", "cuont = 2", "missing key 'count' in [weights.heads]"),
        ("n = 9", "n = -3", "cloud.n must be greater than 0, got -3"),
        ("n = 9", 'n = "9"', "cloud.n must be a valid integer, got '9'"),
        ("n = 9", "n = 9.0", "cloud.n must be a valid integer, got 9.0"),
        ("n = 9", "n = true", "cloud.n must be a valid integer, got True"),
        ("n = 9", "n = 9\ndim = 1", "cloud.dim must be greater than or equal to 2, got 1"),
        ("step = 0.1", "step = 0", "run.step must be greater than 0, got 0"),
        ("step = 0.1", "step = inf", "run.step must be a finite number, got inf"),
        ("step = 0.1", "step = nan", "run.step must be"),
        ("step = 0.1", 'step = "small"', "run.step must be a valid number, got 'small'"),
        ("step = 0.1", "", "run: give either step, or rtol"),
        ("step = 0.1", "step = 0.1\nrtol = 0.1", "run: give either step, or rtol"),
        ("horizon = 0.5", "t_span = [1.0, 0.0]", "run: t_span must not run backwards"),
        ("horizon = 0.5", "", "run: give either horizon"),
        ("step = 0.1", 'step = 0.1\nscheme = "jk"', "run.scheme: scheme must be one of 'jko'"),
        ("step = 0.1", 'step = 0.1\ncost = "free"', "run.cost: cost must be one of 'source'"),
        (
            "step = 0.1",
            'step = 0.1\nscheme = "bdf2"\ncost = "midpoint"',
            "cost must be 'source' for scheme 'bdf2'",
        ),
        ("uniform", "unifrom", "got 'unifrom'; did you mean 'uniform'?"),
        ("frozen", "fluid", "weights.path must be one of 'frozen', 'oscillating'"),
        ('path = "frozen"', "", "missing key 'path' in [weights], one of 'frozen'"),
        ('path = "frozen"', 'path = "frozen"\nsign = 2', "weights.sign must be 1 or -1, got 2"),
        ('{ kind = "gaussian", count = 2 }', "3", "weights.heads must be a table, got 3"),
        ("count = 2", "count = 2, dim = 4", "heads of dimension 4, [cloud] tokens of dimension 3"),
        ("horizon = 0.5", "horizon = ", "run.toml is not valid TOML"),
        ('path = "frozen"', 'path = "frozen"\nevaluator = "fast"', "[weights]: evaluator must be"),
        ("[run]", '[flows]\nmethod = "rk4"\n[run]', "flows: method 'rk4' needs a step"),
        ("[run]", "[flows]\nstep = 0.1\n[run]", "flows: step goes with the methods euler"),
        (
            "[run]",
            '[flows]\nvelocities = ["gradient", "fast"]\n[run]',
            "flows.velocities[1] must be 'gradient' or 'softmax', got 'fast'",
        ),
    ],
)
def test_error_names_key_and_value(old, new, message):
    assert old in BASE
    assert message in errors_of(BASE.replace(old, new))


def test_all_errors_are_reported_together():
    text = BASE.replace("n = 9", "n = 0").replace("step = 0.1", 'step = -1\ncolour = "red"')
    assert errors_of(text).splitlines() == [
        "run.toml has 3 errors:",
        "  cloud.n must be greater than 0, got 0",
        "  run.step must be greater than 0, got -1",
        "  unknown key 'colour' in [run]; known are horizon, t_span, step, rtol, scheme, cost, "
        "solver, tolerance, max_evaluations, certify",
    ]


def test_missing_file_and_wrong_encoding(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9")
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ('"uniform"\nn = 4\ndim = 5\nseed = 2', TokenCloud.uniform(4, 5, 2)),
        (
            '"von_mises_fisher"\nn = 4\nmean = [0, 0, 2]\nconcentration = 3.0',
            TokenCloud.von_mises_fisher(4, [0, 0, 2], 3.0, 0),
        ),
        (
            '"clustered"\nn = 4\ncenters = [[1.0, 1.0], [0.0, 1.0]]\nnoise = 0.0',
            TokenCloud.clustered(4, [[1.0, 1.0], [0.0, 1.0]], 0.0),
        ),
        ('"octahedral"\nn = 7\nseed = 3', TokenCloud.octahedral(7, 0.05, 3)),
        ('"cross_polytope"\nn = 7\ndim = 4', TokenCloud.cross_polytope(7, 4, 0.05, 0)),
        ('"pentagonal"\nn = 7\nnoise = 0.1', TokenCloud.pentagonal(7, 0.1, 0)),
    ],
)
def test_every_constructor(table, expected):
    text = BASE.replace('"uniform"\nn = 9', table)
    assert build_cloud(parse_config(text)).points.tobytes() == expected.points.tobytes()


def test_files_are_found_beside_the_configuration(tmp_path):
    rng = np.random.default_rng(0)
    cloud = TokenCloud(TokenCloud.uniform(5, 3, rng).points, rng.dirichlet(np.ones(5)))
    np.savez(tmp_path / "tokens.npz", points=cloud.points, weights=cloud.weights)
    matrices = rng.standard_normal((4, 2, 3, 3))
    np.savez(tmp_path / "layers.npz", times=[0.0, 1.0, 2.0, 3.0], matrices=matrices)
    np.savez(tmp_path / "heads.npz", matrices=matrices[0], weights=[0.25, 0.75])
    text = BASE.replace('"uniform"\nn = 9', '"file"\nfile = "tokens.npz"')
    from_file = text.replace('kind = "gaussian", count = 2', 'kind = "file", file = "heads.npz"')
    with pytest.raises(ConfigError, match=r"\[weights\]: heads.npz: matrices\[0\] must be symmetric"):
        build_model(parse_config(from_file), cloud, tmp_path)
    config = parse_config(from_file.replace("npz\" }", 'npz", symmetrize = true }'))
    built = build_cloud(config, tmp_path)
    assert built.points.tobytes() == cloud.points.tobytes()
    heads = build_model(config, built, tmp_path).path(0.0)
    np.testing.assert_array_equal(heads.matrices, Heads.symmetrized(matrices[0]).matrices)
    assert heads.weights.tolist() == [0.25, 0.75]
    layers = text.replace('"frozen"', '"interpolated"\nfile = "layers.npz"\nsymmetrize = true')
    layers = layers.replace('heads = { kind = "gaussian", count = 2 }', "scale = 2.0")
    path = build_model(parse_config(layers), built, tmp_path).path
    assert type(path) is weights.Interpolated
    np.testing.assert_allclose(
        path(1.0).matrices, matrices[1] + matrices[1].transpose(0, 2, 1), rtol=1e-15
    )
    longer = parse_config(layers.replace("horizon = 0.5", "horizon = 4.0"))
    with pytest.raises(ConfigError, match=r"\[run\] and \[weights\]: t must lie in"):
        build_model(longer, built, tmp_path)


@pytest.mark.parametrize(
    ("path", "kind"), [("frozen", weights.Frozen), ("oscillating", weights.Oscillating)]
)
def test_paths_scale_and_inline_matrices(path, kind):
    text = BASE.replace('"frozen"', f'"{path}"\nscale = 3.0\nsign = -1').replace(
        'kind = "gaussian", count = 2',
        'kind = "matrices", matrices = [[[1, 2.0, 0], [2, 0, 0], [0, 0, 1]]]',
    )
    config = parse_config(text)
    model = build_model(config, build_cloud(config))
    assert type(model.path) is kind
    assert model.sign == -1
    np.testing.assert_allclose(
        model.path(0.0).matrices, [[[3, 6, 0], [6, 0, 0], [0, 0, 3]]], atol=1e-15
    )


def test_flows_use_fixed_steps_on_rough_paths_only():
    smooth = parse_config(BASE)
    model = build_model(smooth, build_cloud(smooth))
    options = flow_options(smooth, model)
    assert (options["method"], options["step"], options["rtol"]) == ("DOP853", None, 1e-9)
    assert options["t_eval"].tolist() == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])
    for base_step, step in (("0.005", 0.005), ("0.02", 0.01), ("0.2", None)):
        rough = BASE.replace('"frozen"', f'"ornstein_uhlenbeck"\nbase_step = {base_step}')
        config = parse_config(rough)
        options = flow_options(config, build_model(config, build_cloud(config)))
        assert options["method"] == ("DOP853" if step is None else "rk4")
        assert options["step"] == (None if step is None else pytest.approx(step))
    named = parse_config(BASE + '[flows]\nmethod = "heun"\nstep = 0.02\n')
    options = flow_options(named, model)
    assert (options["method"], options["step"]) == ("heun", 0.02)


def test_steps_chosen_by_error_keep_the_flow_at_the_movement_s_times():
    config = parse_config(BASE.replace("step = 0.1", "rtol = 1e-3"))
    model = build_model(config, build_cloud(config))
    assert movement_options(config)["step"] is None
    assert movement_options(config)["rtol"] == 1e-3
    assert flow_options(config, model)["t_eval"] is None
    assert flow_options(config, model, [0.0, 0.3])["t_eval"] == [0.0, 0.3]


def test_files_that_need_a_key_name_it(tmp_path):
    np.save(tmp_path / "raw.npy", 3 * np.eye(3))
    text = BASE.replace('"uniform"\nn = 9', '"file"\nfile = "raw.npy"')
    with pytest.raises(ConfigError) as caught:
        build_cloud(parse_config(text), tmp_path)
    assert str(caught.value) == (
        "[cloud]: raw.npy: points must be unit vectors, got |points[0]| = 3; normalize = true in "
        "[cloud] divides by the norms"
    )
    cloud = build_cloud(parse_config(text.replace('npy"', 'npy"\nnormalize = true')), tmp_path)
    np.testing.assert_array_equal(cloud.points, np.eye(3))
    with pytest.raises(ConfigError, match=r"^\[cloud\] file: no such file '.*none.npy'$"):
        build_cloud(parse_config(text.replace("raw", "none")), tmp_path)
    (tmp_path / "raw.npy").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"^\[cloud\]: raw.npy: "):
        build_cloud(parse_config(text), tmp_path)


def test_heads_that_need_a_key_name_it(tmp_path):
    np.save(tmp_path / "skew.npy", [[1.0, 2.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    inline = "[[[1.0, 2.0], [0.0, 1.0]]]"
    cloud = TokenCloud(np.eye(3))
    for heads in ('kind = "file", file = "skew.npy"', f'kind = "matrices", matrices = {inline}'):
        config = parse_config(BASE.replace('kind = "gaussian", count = 2', heads))
        with pytest.raises(ConfigError, match=r"symmetrize = true in \[weights.heads\] replaces D"):
            build_model(config, cloud, tmp_path)
    layers = BASE.replace('"frozen"', '"interpolated"\nfile = "none.npz"')
    layers = layers.replace('heads = { kind = "gaussian", count = 2 }', "")
    with pytest.raises(ConfigError, match=r"^\[weights\] file: no such file"):
        build_model(parse_config(layers), cloud, tmp_path)
    missing = BASE.replace('kind = "gaussian", count = 2', 'kind = "file", file = "none.npy"')
    with pytest.raises(ConfigError, match=r"^\[weights.heads\] file: no such file"):
        build_model(parse_config(missing), cloud, tmp_path)
