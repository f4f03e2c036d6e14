"""The command line: runs, interruptions of every kind, errors, exit codes."""

import os
import signal
import subprocess
import sys
import time
import types
from dataclasses import fields

import numpy as np
import pytest
import xarray
from jko import Curve
from jko.cli import app
from jko.cli.progress import ProgressMonitor
from jko.config import example_config, parse_config
from jko.runs.curve import CurveStatus
from jko.runs.store import StoreError, load_curve
from typer.testing import CliRunner

CURVES = ("movement", "gradient", "softmax")

TINY = """
[cloud]
constructor = "octahedral"
n = 10
[weights]
path = "ornstein_uhlenbeck"
heads = { kind = "gaussian", count = 2 }
[run]
horizon = 0.2
step = 0.05
[output]
report = false
"""


def jko(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    return file


@pytest.fixture
def ran(tmp_path, config):
    """A complete run."""
    result = jko("run", config, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    return result, tmp_path / "run"


def same_run(a, b, names=CURVES):
    for name in names:
        left, right = load_curve(a / "data.zarr" / name), load_curve(b / "data.zarr" / name)
        for field in (f.name for f in fields(Curve) if f.name not in ("model", "integrals")):
            one, other = getattr(left, field), getattr(right, field)
            if isinstance(one, np.ndarray):
                assert one.tobytes() == other.tobytes(), (name, field)
            else:
                assert one == other, (name, field)
        assert {k: v.tobytes() for k, v in left.integrals.items()} == {
            k: v.tobytes() for k, v in right.integrals.items()
        }


def test_version_and_example():
    assert jko("--version").stdout.startswith("jko ")
    result = jko("example")
    assert result.exit_code == 0
    assert result.stdout == example_config()


def test_example_runs_when_it_is_shrunk(tmp_path):
    text = example_config()
    for old, new in (("n = 200", "n = 8"), ("count = 10", "count = 2"), ("= 5.0 ", "= 0.1 "),
                     ("report = true", "report = false")):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "small.toml").write_text(text)
    result = jko("run", tmp_path / "small.toml", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert load_curve(tmp_path / "run" / "data.zarr" / "movement").times.size == 3


def test_run_leaves_config_data_and_a_summary(ran, config):
    result, root = ran
    assert (root / "config.toml").read_bytes() == config.read_bytes()
    for name in CURVES:
        curve = load_curve(root / "data.zarr" / name)
        assert curve.success
        assert curve.times.tolist() == load_curve(root / "data.zarr" / "movement").times.tolist()
        with xarray.open_zarr(root / "data.zarr", group=name) as dataset:
            assert dataset.sizes["token"] == 10
    for words in (
        "4 steps to t = 0.2", "4 converged", "4 proven", "worst plan gap", "worst gradient norm",
        "objective decreases in every step", "W2(JKO, gradient flow)", "W2(JKO, softmax flow)",
        "integrated defect", "step against half the step",
    ):  # fmt: skip
        assert words in " ".join(result.stdout.split()), words
    defect = load_curve(root / "data.zarr" / "softmax").integrals["defect"][-1]
    assert f"{defect:.4e}" in result.stdout


def test_existing_run_is_kept_unless_told_otherwise(ran, config):
    _, root = ran
    marker = root / "data.zarr" / "movement" / "zarr.json"
    before = marker.stat().st_mtime_ns
    result = jko("run", config, "--out", root)
    assert result.exit_code == 2
    assert "holds a run already" in result.stderr
    assert marker.stat().st_mtime_ns == before
    assert jko("run", config, "--out", root, "--overwrite").exit_code == 0
    assert marker.stat().st_mtime_ns != before


def test_directory_of_something_else_is_never_touched(tmp_path, config):
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.toml").write_text("mine")
    (other / "thesis.tex").write_text("years of work")
    for flags in ([], ["--overwrite"]):
        result = jko("run", config, "--out", other, *flags)
        assert result.exit_code == 2
        assert "thesis.tex" in result.stderr
    assert sorted(p.name for p in other.iterdir()) == ["config.toml", "thesis.tex"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("step = 0.05", "stepp = 0.05", "unknown key 'stepp' in [run]; did you mean 'step'?"),
        ("n = 10", "n = 0", "cloud.n must be greater than 0, got 0"),
        ("octahedral", "pentagonal", "tokens of dimension 2"),
        ("[weights]", "[weights]\nscale = 1e4", "overflows"),
    ],
)
def test_wrong_configurations_end_before_any_work(tmp_path, old, new, message):
    text = TINY.replace(old, new)
    if message.startswith("tokens"):
        text = text.replace("count = 2", "count = 2, dim = 3")
    (tmp_path / "wrong.toml").write_text(text)
    result = jko("run", tmp_path / "wrong.toml", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output
    assert not (tmp_path / "run").exists()


def test_wrong_places_are_one_line(tmp_path, config):
    for arguments in (
        ("run", tmp_path / "none.toml", "--out", tmp_path / "run"),
        ("resume", tmp_path / "nothing"),
        ("report", tmp_path / "nothing"),
        ("run", config, "--out", config),
    ):
        result = jko(*arguments)
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1
        assert result.stderr.startswith("error: ")


@pytest.mark.parametrize("curve", CURVES)
def test_interrupted_run_is_kept_and_resumed_bit_for_bit(
    tmp_path, config, ran, monkeypatch, curve
):
    _, whole = ran
    real = ProgressMonitor.snapshot

    def interrupting(self, snapshot):
        task = self._bars.tasks[self._task]
        if task.description == curve and snapshot.time >= 0.1:
            raise KeyboardInterrupt
        real(self, snapshot)

    monkeypatch.setattr(ProgressMonitor, "snapshot", interrupting)
    root = tmp_path / "part"
    result = jko("run", config, "--out", root)
    assert result.exit_code == 130
    assert f"jko resume {root}" in result.stdout
    stored = load_curve(root / "data.zarr" / curve)
    assert stored.status is CurveStatus.INTERRUPTED
    assert stored.times.size == 3
    monkeypatch.setattr(ProgressMonitor, "snapshot", real)
    result = jko("resume", root)
    assert result.exit_code == 0, result.output
    assert "4 steps to t = 0.2" in result.stdout
    same_run(root, whole)


def test_resume_of_a_complete_run_repeats_the_summary(ran):
    first, root = ran
    again = jko("resume", root)
    assert again.exit_code == 0
    assert again.stdout == first.stdout


def test_a_run_that_stored_nothing_says_so(ran):
    _, root = ran
    for name in CURVES:
        (root / "data.zarr" / name).rename(root / f"moved_{name}")
    result = jko("resume", root)
    assert result.exit_code == 2
    assert "jko run --overwrite" in result.stderr


def started(root, config):
    """A real process computing a run, once it has stored a few states."""
    # a process started in the background inherits an ignored SIGINT
    restore = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{restore}; from jko.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "run", str(config), "--out", str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        # not the checkout, whose package would be found before the installed one
        cwd=root.parent,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if load_curve(root / "data.zarr" / "movement").times.size >= 3:
                return process
        except (StoreError, OSError, KeyError, ValueError):
            pass
        time.sleep(0.01)
    process.kill()
    raise AssertionError("the run stored nothing in time")


@pytest.fixture
def slow(tmp_path):
    """Every step is written, which takes longer than the step."""
    text = TINY.replace("step = 0.05", "step = 0.01") + "write_every = 0\n"
    file = tmp_path / "slow.toml"
    file.write_text(text + "[flows]\nvelocities = ['softmax']\n")
    return file


def test_killed_process_is_resumed_bit_for_bit(tmp_path, slow):
    process = started(tmp_path / "run", slow)
    process.kill()
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    part = load_curve(tmp_path / "run" / "data.zarr" / "movement")
    assert 3 <= part.times.size < 21
    assert part.status is CurveStatus.INTERRUPTED
    result = jko("resume", tmp_path / "run")
    assert result.exit_code == 0
    slow.write_text(slow.read_text().replace("write_every = 0", ""))
    whole = jko("run", slow, "--out", tmp_path / "whole")
    assert result.stdout == whole.stdout
    same_run(tmp_path / "run", tmp_path / "whole", ("movement", "softmax"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_termination_keep_what_is_done(tmp_path, slow, number):
    process = started(tmp_path / "run", slow)
    process.send_signal(number)
    output = process.communicate(timeout=30)[0]
    assert process.returncode == 130
    assert f"continue with: jko resume {tmp_path / 'run'}" in output
    assert 3 <= load_curve(tmp_path / "run" / "data.zarr" / "movement").times.size < 21


def test_steps_chosen_by_error(tmp_path):
    (tmp_path / "adaptive.toml").write_text(TINY.replace("step = 0.05", "rtol = 0.02"))
    result = jko("run", tmp_path / "adaptive.toml", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    curves = [load_curve(tmp_path / "run" / "data.zarr" / name) for name in CURVES]
    assert curves[0].times.tolist() == curves[1].times.tolist() == curves[2].times.tolist()


def test_steps_that_are_too_long_are_advised_upon(tmp_path):
    text = TINY.replace("[weights]", "[weights]\nscale = 3.0")
    text = text.replace("step = 0.05", 'step = 0.2\ncertify = "local"')
    (tmp_path / "long.toml").write_text(text)
    result = jko("run", tmp_path / "long.toml", "--out", tmp_path / "run")
    (step,) = load_curve(tmp_path / "run" / "data.zarr" / "movement").steps
    assert step.certificate.optimality != "proven"
    assert "1 of 1 steps are not proven to be optimal" in result.stderr
    assert "is 0.2 long" in result.stderr


class Card:
    def __init__(self, failed):
        self.failed = failed

    def table(self):
        return "the card"


@pytest.mark.parametrize("failed", [False, True])
def test_verify_exits_with_the_verdict(tmp_path, monkeypatch, failed):
    calls = []

    def run_verification(quick, out, progress):
        progress("a claim", 0, 1)
        calls.append((quick, out))
        return Card(failed)

    def write_verification_report(card, out):
        return out / "report.html"

    verify = types.SimpleNamespace(run_verification=run_verification)
    monkeypatch.setitem(sys.modules, "jko.verify", verify)
    report = types.SimpleNamespace(write_verification_report=write_verification_report)
    monkeypatch.setitem(sys.modules, "jko.report", report)
    result = jko("verify", "--quick", "--out", tmp_path / "card")
    assert calls == [(True, tmp_path / "card")]
    assert "the card" in result.stdout
    assert str(tmp_path / "card" / "report.html") in result.stdout
    assert result.exit_code == (1 if failed else 0)


def test_report_is_written_after_a_run_and_on_demand(ran, tmp_path, monkeypatch):
    _, root = ran
    written = []

    def write_run_report(directory):
        written.append(directory)
        return directory / "report.html"

    fake = types.SimpleNamespace(write_run_report=write_run_report)
    monkeypatch.setitem(sys.modules, "jko.report", fake)
    result = jko("report", root)
    assert result.exit_code == 0
    assert str(root / "report.html") in result.stdout
    (tmp_path / "reported.toml").write_text(TINY.replace("report = false", "report = true"))
    jko("run", tmp_path / "reported.toml", "--out", tmp_path / "new")
    assert written == [root, tmp_path / "new"]


def test_tiny_config_is_valid():
    assert parse_config(TINY).run.step == 0.05
