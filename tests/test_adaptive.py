"""Steps chosen from a tolerance: it is honoured, at the work the order promises."""

from __future__ import annotations

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, minimizing_movement, particle_flow
from jko.problems import REFERENCE_CASES, reference_case
from jko.runs import adaptive
from jko.runs.adaptive import StepController, adaptive_steps
from jko.runs.curve import CurveStatus
from jko.runs.monitors import Snapshot
from jko.schemes import JKO, Midpoint, Past
from jko.steps.proximal import StepOptions
from jko.transport.distance import labelled_distance, wasserstein

TOLERANCES = (1e-3, 1e-4, 1e-5)


def run(name, rtol, **options):
    case = reference_case(name)
    options = {"certify": "none", "tolerance": 1e-8, **options}
    return minimizing_movement(case.model, case.cloud, (0.0, case.horizon), rtol=rtol, **options)


@pytest.fixture(scope="module")
def curves():
    """One run per case and tolerance."""
    return {(name, rtol): run(name, rtol) for name in REFERENCE_CASES for rtol in TOLERANCES}


@pytest.mark.parametrize("name", REFERENCE_CASES)
def test_tolerance_is_honoured(curves, name):
    case = reference_case(name)
    exact = TokenCloud(case.known["flow_gradient_T"], case.cloud.weights)
    for rtol in TOLERANCES:
        curve = curves[name, rtol]
        assert curve.success, curve.message
        assert curve.times[-1] == case.horizon
        error = wasserstein(curve.final, exact)
        # neither missed nor bought with needless steps
        assert 0.02 * rtol < error < 10 * rtol


@pytest.mark.parametrize("name", REFERENCE_CASES)
def test_work_grows_as_the_order_says(curves, name):
    """Ten times the accuracy takes sqrt(10) times the steps."""
    steps = np.array([curves[name, rtol].times.size - 1 for rtol in TOLERANCES])
    ratios = steps[1:] / steps[:-1]
    np.testing.assert_allclose(ratios, np.sqrt(10), rtol=0.1)
    work = np.array([curves[name, rtol].evaluations for rtol in TOLERANCES])
    assert (work[1:] / work[:-1] < 3.5).all()


def test_interpolation_between_the_steps_is_as_good_as_they_are(curves):
    case = reference_case("sphere_weighted")
    curve = curves["sphere_weighted", 1e-4]
    times = (curve.times[:-1] + curve.times[1:])[::9] / 2
    exact = particle_flow(case.model, case.cloud, (0.0, 1.0), rtol=1e-12, t_eval=times)
    for t, points in zip(times, exact.points, strict=True):
        assert labelled_distance(curve.at(t).points, points, case.cloud.weights) < 1e-4


def test_few_tries_are_rejected_and_all_work_is_counted(monkeypatch):
    work = {JKO: [], Midpoint: []}

    def counted(kind):
        real = kind.advance

        def advance(self, *arguments):
            result = real(self, *arguments)
            work[kind].append(result.stats.gradient_evaluations)
            return result

        return advance

    for kind in work:
        monkeypatch.setattr(kind, "advance", counted(kind))
    curve = run("sphere_three_heads", 1e-4)
    accepted = curve.times.size - 1
    assert accepted <= len(work[Midpoint]) <= accepted + 5
    assert curve.evaluations == sum(work[JKO]) + sum(work[Midpoint])
    assert curve.scheme == "midpoint"
    np.testing.assert_allclose([2 * record.step for record in curve.steps], np.diff(curve.times))


def strong_heads(seed, sign, norm):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((2, 3, 3))
    heads = a @ a.transpose(0, 2, 1)
    heads *= norm / np.abs(np.linalg.eigvalsh(heads)).max()
    return AttentionModel(Heads(heads), sign=sign), rng


@pytest.mark.parametrize("why", ["its certificate failed", "it does not converge"])
def test_failed_tries_are_halved(why):
    """From a first step that cannot be kept, to one that can; the estimate never rejects."""
    if why == "its certificate failed":
        model, rng = strong_heads(4, 1, 5)
        cloud = TokenCloud.uniform(10, 3, rng)
    else:
        model, rng = strong_heads(3, -1, 6)
        cloud = TokenCloud.octahedral(12, 0.3, rng)
    first, options = Past(time=0.0, cloud=cloud), StepOptions(certify="full", max_evaluations=200)
    large = Midpoint().advance(model, (first,), 0.4, options)
    assert large.success == (why == "its certificate failed")
    stop, result = next(adaptive_steps(model, first, 1.0, 10.0, options, step=0.4))
    assert result.success
    assert result.certificate.optimality != "failed"
    assert stop in 0.4 / 2 ** np.arange(1, 10)
    assert result.stats.gradient_evaluations > large.stats.gradient_evaluations


def test_the_floor_ends_the_run_with_a_reason(monkeypatch):
    monkeypatch.setattr(adaptive, "FLOOR", 0.05)
    curve = run("sphere_three_heads", 1e-5)
    assert curve.status is CurveStatus.STEP_FAILED
    assert "the adaptive step fell to" in curve.message
    assert "below its floor of 0.05" in curve.message
    assert curve.times[-1] < 1


def test_a_run_goes_on_from_where_it_stopped(curves):
    whole = curves["sphere_three_heads", 1e-4]
    kept = 10
    earlier = [
        Snapshot(
            time=float(whole.times[k]),
            points=whole.points[k],
            weights=whole.weights[k],
            energy=float(whole.energy[k]),
            record=whole.steps[k - 1] if k else None,
        )
        for k in range(kept)
    ]
    resumed = run("sphere_three_heads", 1e-4, earlier=earlier)
    np.testing.assert_array_equal(resumed.points[:kept], whole.points[:kept])
    assert abs(resumed.times.size - whole.times.size) <= 3
    assert labelled_distance(resumed.points[-1], whole.points[-1], whole.weights[0]) < 1e-5


def test_stationary_tokens_take_one_step():
    model = AttentionModel(Heads(np.zeros((3, 3))))
    curve = minimizing_movement(model, TokenCloud(np.eye(3)), (0.0, 2.0), rtol=1e-6)
    np.testing.assert_array_equal(curve.times, [0.0, 2.0])
    empty = minimizing_movement(model, TokenCloud(np.eye(3)), (1.0, 1.0), rtol=1e-6)
    np.testing.assert_array_equal(empty.times, [1.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one of step and rtol must be given"),
        ({"step": 0.1, "rtol": 1e-3}, "rtol must be None when step is given, got 0.001"),
        ({"rtol": -1.0}, "rtol must be positive"),
        ({"rtol": 1e-3, "scheme": "bdf2"}, "scheme must be 'jko' or 'midpoint' for step=None"),
        ({"rtol": 1e-3, "cost": "geodesic"}, "cost must be 'source'"),
        ({"step": 0.0}, "step must be positive"),
    ],
)
def test_invalid_arguments(options, message):
    case = reference_case("circle_two_heads")
    with pytest.raises(ValueError, match=message):
        minimizing_movement(case.model, case.cloud, (0.0, 1.0), **options)


def test_controller_holds_the_tolerance():
    """On an error C tau^2 with a drifting C the accepted errors settle at s^(1/0.35) of rtol."""
    control = StepController(rtol=1e-4)
    step, before, ratios = 1e-3, 1e-4, []
    for k in range(60):
        error = 2 * (1 + 0.3 * np.sin(k / 15)) * step**2
        if error > 1e-4:
            step *= control.after_rejection(error)
            continue
        ratios.append(error / 1e-4)
        step *= control.after_success(error, before)
        before = error
    assert 0.3 < np.mean(ratios[20:]) < 1
    assert control.after_success(0.0, 0.0) <= 3.0
    assert control.after_rejection(1.0) == 0.2
