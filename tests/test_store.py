"""Stores: bit-exact round trips, what a killed process leaves, and resumed runs."""

import json
import shutil
from dataclasses import fields

import jko
import numpy as np
import pytest
import xarray
import zarr
from jko import AttentionModel, Curve, Heads, TokenCloud, weights
from jko.problems import article_sphere, reference_case
from jko.runs.curve import CurveStatus
from jko.runs.groups import consolidate, scatter
from jko.runs.paths import exact_cloud
from jko.runs.resume import resume, resume_flow, resume_movement, store_flow, store_movement
from jko.runs.store import (
    StoreError,
    StoreWriter,
    load_curve,
    run_parameters,
    save_curve,
)

NOT_COMPARED = {"model"}


def same(a: Curve, b: Curve) -> None:
    """Every field equal to the last bit (models are compared by what they compute)."""
    for name in (f.name for f in fields(Curve) if f.name not in NOT_COMPARED):
        left, right = getattr(a, name), getattr(b, name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype
            assert left.shape == right.shape, name
            assert left.tobytes() == right.tobytes(), name
        elif name == "integrals":
            assert {k: v.tobytes() for k, v in left.items()} == {
                k: v.tobytes() for k, v in right.items()
            }
        else:
            assert left == right, name


def sampled_heads(seed=0, count=2):
    rng = np.random.default_rng(seed)
    heads = Heads.gaussian(count, 3, rng)
    return Heads(heads.matrices, rng.dirichlet(np.ones(count)))


def every_path():
    heads = sampled_heads()
    times = np.array([0.0, 0.07, 0.3])
    layers = np.stack([sampled_heads(k).matrices for k in range(3)])
    driven = weights.OrnsteinUhlenbeck(heads, horizon=0.5, variance=1.7, rng=3)
    return {
        "frozen": weights.Frozen(heads),
        "oscillating": weights.Oscillating(heads),
        "ornstein_uhlenbeck": driven,
        "interpolated": weights.Interpolated(times, layers, heads.weights),
        "perturbed": weights.Perturbed(driven, weights.Perturbed(heads, heads, 0.1), 1e-3),
        "modulated": reference_case("sphere_three_heads").model.path,
    }


@pytest.fixture
def cloud():
    rng = np.random.default_rng(5)
    return TokenCloud(TokenCloud.uniform(7, 3, rng).points, rng.dirichlet(np.ones(7)))


@pytest.fixture
def model():
    return AttentionModel(weights.OrnsteinUhlenbeck(sampled_heads(), horizon=0.5, rng=1))


@pytest.mark.parametrize("kind", sorted(every_path()))
def test_movement_and_its_model_come_back_bit_for_bit(tmp_path, cloud, kind):
    model = AttentionModel(every_path()[kind], sign=-1, evaluator="dense")
    curve = jko.minimizing_movement(model, cloud, (0.0, 0.3), 0.1)
    curve.save(tmp_path / "curve")
    loaded = load_curve(tmp_path / "curve")
    same(curve, loaded)
    assert (loaded.model.sign, loaded.model.evaluator) == (-1, "dense")
    for t in (0.0, 0.0313, 0.3):
        before, after = model.path(t), loaded.model.path(t)
        assert before.matrices.tobytes() == after.matrices.tobytes()
        assert before.weights.tobytes() == after.weights.tobytes()
        slopes = model.path.derivative(t), loaded.model.path.derivative(t)
        assert slopes[0].tobytes() == slopes[1].tobytes()
    kinks = model.path.breakpoints(0, 0.3), loaded.model.path.breakpoints(0, 0.3)
    assert kinks[0].tobytes() == kinks[1].tobytes()


def test_sampled_path_keeps_its_class_and_parameters(tmp_path, cloud, model):
    curve = jko.minimizing_movement(model, cloud, (0.0, 0.1), 0.1)
    curve.save(tmp_path / "curve")
    path = load_curve(tmp_path / "curve").model.path
    assert type(path) is weights.OrnsteinUhlenbeck
    assert (path.variance, path.base_step) == (2.0, 0.005)


def test_flow_and_its_integrals_come_back_bit_for_bit(tmp_path, cloud, model):
    curve = jko.particle_flow(model, cloud, (0.0, 0.1), "softmax", method="heun", step=0.01)
    curve.save(tmp_path / "curve")
    loaded = load_curve(tmp_path / "curve")
    same(curve, loaded)
    assert set(loaded.integrals) >= {"defect", "slope_squared"}
    assert loaded.steps == ()


def test_signed_zeros_and_the_smallest_numbers_survive(tmp_path):
    """Zarr leaves out chunks that equal the fill value 0.0, to which -0.0 is equal."""
    values = np.array([-0.0, -0.0])
    curve = Curve(
        model=None,
        kind="flow",
        scheme="gradient",
        times=np.array([0.0, 5e-324]),
        points=np.array([[[1.0, -0.0]], [[-0.0, 1.0]]]),
        weights=np.ones((2, 1)),
        energy=values,
        status=CurveStatus.COMPLETE,
        integrals={"defect": values},
    )
    save_curve(curve, tmp_path / "curve")
    loaded = load_curve(tmp_path / "curve")
    assert loaded.energy.tobytes() == values.tobytes()
    assert loaded.points.tobytes() == curve.points.tobytes()
    assert loaded.times[1] == 5e-324


def test_clouds_are_restored_without_being_normalised_again():
    cloud = TokenCloud.uniform(20, 3, 0)
    points = (1 + 1e-9) * cloud.points
    assert TokenCloud(points).points.tobytes() != points.tobytes()
    restored = exact_cloud(points, cloud.weights)
    assert restored.points.tobytes() == points.tobytes()
    assert not restored.points.flags.writeable


def test_every_field_of_a_curve_is_stored():
    """A new field of Curve must be added to the store, and then here."""
    assert {f.name for f in fields(Curve)} == {
        "model", "kind", "scheme", "times", "points", "weights", "energy", "status", "steps",
        "integrals", "evaluations", "cost", "detail",
    }  # fmt: skip


@pytest.mark.parametrize("run", ["movement", "flow"])
def test_xarray_opens_what_is_stored(tmp_path, cloud, model, run):
    if run == "movement":
        curve = jko.minimizing_movement(model, cloud, (0.0, 0.2), 0.1)
    else:
        curve = jko.particle_flow(model, cloud, (0.0, 0.02), method="heun", step=0.01)
    curve.save(tmp_path / "curve")
    with xarray.open_zarr(tmp_path / "curve", consolidated=False) as dataset:
        assert dataset.points.dims == ("time", "token", "coordinate")
        assert dataset.sizes["time"] == 3
        assert dataset.indexes["time"].tolist() == curve.times.tolist()
        xarray.testing.assert_identical(dataset.load(), curve.to_xarray())
    if run == "movement":
        codes, names = dataset.step_status.values, dataset.step_status.attrs["names"]
        assert [names[c] for c in codes] == [step.status.name for step in curve.steps]


def test_callable_path_loads_without_a_model_and_says_so(tmp_path, cloud):
    heads = sampled_heads()
    path = weights.FromFunction(lambda t: Heads((1 + t) * heads.matrices, heads.weights))
    curve = jko.minimizing_movement(AttentionModel(path), cloud, (0.0, 0.1), 0.1)
    curve.save(tmp_path / "curve")
    loaded = load_curve(tmp_path / "curve")
    assert loaded.model is None
    assert "callable" in loaded.message
    assert loaded.points.tobytes() == curve.points.tobytes()
    # saved once more, the message is not repeated
    loaded.save(tmp_path / "again")
    assert load_curve(tmp_path / "again").detail == loaded.detail


def test_store_imports_nothing_from_outside_the_package(tmp_path, cloud):
    case = reference_case("sphere_one_head")
    jko.minimizing_movement(case.model, case.cloud, (0.0, 0.1), 0.1).save(tmp_path / "curve")
    part = zarr.open_group(tmp_path / "curve", mode="r+")["model"]
    described = part.attrs["description"]
    described["path"]["of"] = "subprocess:Popen"
    part.attrs["description"] = described
    with pytest.raises(ValueError, match="refusing to import 'subprocess'"):
        load_curve(tmp_path / "curve")


def test_places_that_are_no_store_are_refused_and_left_alone(tmp_path, cloud, model):
    curve = jko.minimizing_movement(model, cloud, (0.0, 0.1), 0.1)
    with pytest.raises(StoreError, match="does not exist"):
        load_curve(tmp_path / "nothing")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(StoreError, match="precious"):
            save_curve(curve, precious, overwrite=overwrite)
    assert (precious / "thesis.tex").exists()
    save_curve(curve, tmp_path / "curve")
    with pytest.raises(StoreError, match="exists already"):
        save_curve(curve, tmp_path / "curve")
    save_curve(curve, tmp_path / "curve", overwrite=True)
    same(load_curve(tmp_path / "curve"), curve)


def test_arguments_that_are_wrong_leave_no_store(tmp_path, cloud, model):
    with pytest.raises(ValueError, match="step must be positive"):
        store_movement(tmp_path / "run", model, cloud, (0.0, 1.0), -0.1)
    assert not (tmp_path / "run").exists()


def test_states_are_written_as_the_run_goes(tmp_path, cloud, model):
    seen = []

    class Reader:
        def snapshot(self, snapshot):
            seen.append(load_curve(tmp_path / "run").times.size)

        def progress(self, time):
            pass

    curve = store_movement(
        tmp_path / "run", model, cloud, (0.0, 0.3), 0.1, monitor=Reader(), every=0
    )
    assert seen == [1, 2, 3, 4]
    same(load_curve(tmp_path / "run"), curve)
    assert run_parameters(tmp_path / "run")["step"] == 0.1


class Killed(Exception):
    """Stands for a process that ends."""


def test_death_between_any_two_writes_leaves_a_readable_prefix(
    tmp_path, cloud, model, monkeypatch
):
    curve = jko.minimizing_movement(model, cloud, (0.0, 0.25), 0.05)
    snapshots = list(_snapshots(curve))
    writer = _writer(tmp_path / "base", model, curve)
    for snapshot in snapshots[:3]:
        writer.snapshot(snapshot)
    real = zarr.storage.LocalStore.set
    writes = _count_writes(tmp_path, monkeypatch, real, snapshots)
    assert writes > 50
    for allowed in (0, 1, 2, *range(3, writes - 3, 14), writes - 2, writes - 1):
        shutil.copytree(tmp_path / "base", tmp_path / "victim")
        _die_after(allowed, monkeypatch, real)
        with pytest.raises(Killed):
            StoreWriter.reopen(tmp_path / "victim", every=0).snapshot(snapshots[3])
        monkeypatch.setattr(zarr.storage.LocalStore, "set", real)
        found = load_curve(tmp_path / "victim")
        assert found.times.tolist() == curve.times[:3].tolist()
        assert found.points.tobytes() == curve.points[:3].tobytes()
        assert found.steps == curve.steps[:2]
        assert found.status is CurveStatus.INTERRUPTED
        # and the run goes on from there
        again = StoreWriter.reopen(tmp_path / "victim", every=0)
        with xarray.open_zarr(tmp_path / "victim", consolidated=False) as dataset:
            assert dict(dataset.sizes)["time"] == 3
        again.finish(curve)
        same(load_curve(tmp_path / "victim"), curve)
        shutil.rmtree(tmp_path / "victim")


def _snapshots(curve):
    from jko.runs.columns import curve_snapshots

    return curve_snapshots(curve)


def _writer(path, model, curve):
    return StoreWriter(path, model=model, kind=curve.kind, scheme=curve.scheme, every=0)


def _count_writes(tmp_path, monkeypatch, real, snapshots):
    counted = []

    async def counting(self, key, value):
        counted.append(key)
        return await real(self, key, value)

    shutil.copytree(tmp_path / "base", tmp_path / "counted")
    monkeypatch.setattr(zarr.storage.LocalStore, "set", counting)
    StoreWriter.reopen(tmp_path / "counted", every=0).snapshot(snapshots[3])
    monkeypatch.setattr(zarr.storage.LocalStore, "set", real)
    return len(counted)


def _die_after(allowed, monkeypatch, real):
    left = [allowed]

    async def dying(self, key, value):
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return await real(self, key, value)

    monkeypatch.setattr(zarr.storage.LocalStore, "set", dying)


class InterruptAt:
    """Ctrl-C when a run has reached a time."""

    def __init__(self, time):
        self.time = time

    def snapshot(self, snapshot):
        if snapshot.time >= self.time:
            raise KeyboardInterrupt

    def progress(self, time):
        pass


@pytest.mark.parametrize(
    ("scheme", "sizes", "every"),
    [
        ("jko", {"step": 0.07}, 0),
        ("jko", {"step": 0.07}, 100),
        ("bdf2", {"step": 0.07}, 0),
        ("midpoint", {"rtol": 3e-2}, 0.01),
    ],
)
def test_resumed_movement_equals_the_uninterrupted_one(
    tmp_path, cloud, model, scheme, sizes, every
):
    whole = jko.minimizing_movement(model, cloud, (0.0, 0.4), scheme=scheme, **sizes)
    assert whole.success
    part = store_movement(
        tmp_path / "run", model, cloud, (0.0, 0.4), scheme=scheme, **sizes,
        monitor=InterruptAt(0.2), every=every,
    )  # fmt: skip
    assert part.status is CurveStatus.INTERRUPTED
    same(load_curve(tmp_path / "run"), part)
    # interrupted once more, then to the end
    resume(tmp_path / "run", InterruptAt(0.3))
    done = resume_movement(tmp_path / "run")
    same(done, whole)
    same(load_curve(tmp_path / "run"), whole)
    same(resume(tmp_path / "run", InterruptAt(0.0)), whole)  # nothing is left to do


@pytest.mark.parametrize("options", [{"method": "heun", "step": 0.01}, {"method": "DOP853"}])
def test_resumed_flow_equals_the_uninterrupted_one(tmp_path, cloud, model, options):
    options |= {"t_eval": np.array([0.0, 0.04, 0.063])}
    whole = jko.particle_flow(model, cloud, (0.0, 0.063), "softmax", **options)
    part = store_flow(
        tmp_path / "run", model, cloud, (0.0, 0.063), "softmax", **options,
        monitor=InterruptAt(0.04), every=0,
    )  # fmt: skip
    assert not part.success
    same(resume_flow(tmp_path / "run"), whole)
    same(load_curve(tmp_path / "run"), whole)


def test_resume_needs_a_run_and_a_model(tmp_path, cloud, model):
    jko.minimizing_movement(model, cloud, (0.0, 0.1), 0.1).save(tmp_path / "saved")
    with pytest.raises(StoreError, match="without the parameters"):
        resume(tmp_path / "saved")
    path = weights.FromFunction(model.path, model.path.derivative)
    given = AttentionModel(path)
    whole = jko.minimizing_movement(given, cloud, (0.0, 0.3), 0.1)
    store_movement(
        tmp_path / "run", given, cloud, (0.0, 0.3), 0.1, monitor=InterruptAt(0.1)
    )
    with pytest.raises(StoreError, match="pass model="):
        resume(tmp_path / "run")
    with pytest.raises(StoreError, match="not a flow"):
        resume_flow(tmp_path / "run")
    assert resume(tmp_path / "run", model=given).points.tobytes() == whole.points.tobytes()


def test_storing_takes_little_beside_the_steps(tmp_path):
    """Work of one write: every array once, its metadata once, and the counter."""
    problem = article_sphere(10, 2, horizon=0.5)
    curve = jko.minimizing_movement(problem.model, problem.cloud, (0.0, 0.1), 0.05)
    curve.save(tmp_path / "curve")
    files = [p for p in (tmp_path / "curve").rglob("*") if p.is_file()]
    arrays = len(list(zarr.open_group(tmp_path / "curve", mode="r").arrays()))
    assert len(files) < 2 * arrays + 15


def test_what_holds_curves_lists_them(tmp_path, model, cloud):
    data = tmp_path / "run" / "data.zarr"
    zarr.create_group(store=data, zarr_format=3)
    curve = jko.minimizing_movement(model, cloud, (0.0, 0.2), 0.1)
    curve.save(data / "movement")
    curve.save(data / "gradient")
    for place in (tmp_path / "run", data):
        with pytest.raises(StoreError) as caught:
            load_curve(place)
        assert str(caught.value) == (
            f"{place} holds no curve: load one of those in it, {data / 'gradient'}, "
            f"{data / 'movement'}"
        )
    (tmp_path / "file.txt").write_text("no store")
    with pytest.raises(StoreError, match="holds no curve"):
        load_curve(tmp_path / "file.txt")


def test_a_finished_store_is_read_by_xarray_as_it_is(tmp_path, model, cloud):
    curve = jko.minimizing_movement(model, cloud, (0.0, 0.2), 0.1)
    curve.save(tmp_path / "curve")
    with xarray.open_zarr(tmp_path / "curve") as dataset:  # warnings are errors
        assert dataset.sizes["time"] == curve.times.size
    description = json.loads((tmp_path / "curve" / "zarr.json").read_text())
    assert "consolidated_metadata" in description
    # what is written later is not hidden by it
    writer = StoreWriter.reopen(tmp_path / "curve")
    description = json.loads((tmp_path / "curve" / "zarr.json").read_text())
    assert description.get("consolidated_metadata") is None
    writer.finish(curve)
    assert load_curve(tmp_path / "curve").times.size == curve.times.size


def test_a_group_of_curves_is_consolidated_and_scattered_again(tmp_path, model, cloud):
    zarr.create_group(store=tmp_path / "data.zarr", zarr_format=3, attributes={"kept": 1})
    jko.minimizing_movement(model, cloud, (0.0, 0.1), 0.1).save(tmp_path / "data.zarr" / "movement")
    consolidate(tmp_path / "data.zarr")
    with xarray.open_zarr(tmp_path / "data.zarr", group="movement") as dataset:
        assert dataset.sizes["time"] == 2
    scatter(tmp_path / "data.zarr")
    description = json.loads((tmp_path / "data.zarr" / "zarr.json").read_text())
    assert description.get("consolidated_metadata") is None
    assert description["attributes"] == {"kept": 1}
