"""The command ``jko converge``."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest
from jko.cli.app import app
from jko.cli.progress import remaining
from typer.testing import CliRunner

CONFIG = """
[cloud]
constructor = "octahedral"
n = 8
[weights]
path = "oscillating"
[weights.heads]
kind = "gaussian"
count = 2
[run]
horizon = 0.2
step = 0.1
[converge]
steps = [0.1, 0.05]
schemes = ["jko", "midpoint"]
"""


def test_it_writes_the_table_the_file_and_the_figure(tmp_path):
    config, out = tmp_path / "study.toml", tmp_path / "out"
    config.write_text(CONFIG)
    result = CliRunner().invoke(app, ["converge", str(config), "--out", str(out), "--workers", "1"])
    assert result.exit_code == 0, result.output
    for word in ("jko", "midpoint", "finest pair", "verdict"):
        assert word in result.output
    lines = [line for line in (out / "orders.csv").read_text().splitlines() if line[0] != "#"]
    rows = list(csv.DictReader(lines))
    assert [row["scheme"] for row in rows] == ["jko", "jko", "midpoint", "midpoint"]
    # the midpoint's error falls faster
    errors = np.array([float(row["errors"]) for row in rows])
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.3)
    assert errors[2] / errors[3] == pytest.approx(4, abs=0.6)
    assert (out / "orders.png").stat().st_size > 10_000


def test_a_bad_configuration_is_one_clear_line(tmp_path):
    config = tmp_path / "study.toml"
    config.write_text(CONFIG.replace("[converge]", "[converge]\nscheme = 1"))
    result = CliRunner().invoke(app, ["converge", str(config), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "unknown key 'scheme'" in result.output
    assert "schemes" in result.output
    assert not (tmp_path / "out").exists()


def _run(tmp_path, text):
    config, out = tmp_path / "study.toml", tmp_path / "out"
    config.write_text(text)
    arguments = ["converge", str(config), "--out", str(out), "--workers", "1"]
    return CliRunner().invoke(app, arguments), out


def test_a_run_that_ends_early_is_a_gap_and_the_rest_is_kept(tmp_path):
    text = CONFIG.replace('"octahedral"\nn = 8', '"uniform"\nn = 50')
    text = text.replace('path = "oscillating"', 'path = "oscillating"\nsign = -1')
    text = text.replace("horizon = 0.2", "horizon = 2.0")
    text = text.replace("steps = [0.1, 0.05]", "steps = [0.4, 0.2, 0.1]")
    text = text.replace('"jko", "midpoint"', '"bdf2", "jko"')
    result, out = _run(tmp_path, text)
    assert result.exit_code == 1, result.output
    assert "gap" in result.output
    assert "note: bdf2: step 0.2 has no error, its run ended early: at t = 1.6" in result.output
    assert "[converge] schemes" in result.output
    lines = [line for line in (out / "orders.csv").read_text().splitlines() if line[0] != "#"]
    rows = list(csv.DictReader(lines))
    assert sum(row["scheme"] == "jko" and row["errors"] != "" for row in rows) == 3
    [gap] = [row for row in rows if row["steps"] == "0.2" and row["scheme"] == "bdf2"]
    assert (gap["errors"], gap["gap"].startswith("at t = 1.6")) == ("", True)
    assert (out / "orders.png").stat().st_size > 10_000


def test_rough_steps_are_said_before_the_runs_and_get_no_verdict(tmp_path):
    text = CONFIG.replace('"oscillating"', '"ornstein_uhlenbeck"')
    result, _ = _run(tmp_path, text)
    assert result.exit_code == 0, result.output
    assert result.output.index("4 runs: jko and midpoint, each with steps 0.1, 0.05") >= 0
    note = "the weight path has kinks every 0.005, the smallest step is 0.05"
    assert result.output.count(note) == 1
    assert result.output.index(note) < result.output.index("finest pair")
    assert result.output.count("rough path") == 3
    assert "differs" not in result.output


def test_the_verdicts_rule_is_printed(tmp_path):
    result, _ = _run(tmp_path, CONFIG)
    assert "holds: the finest pair is within the band of the expected order" in result.output
    assert "1 ± 0.05" in result.output
    assert "2 ± 0.1" in result.output


def test_remaining_time_of_a_task_that_advances_rarely():
    task = SimpleNamespace(
        time_remaining=None, fields={"lumpy": True}, completed=25.0, total=100.0, elapsed=1300.0
    )
    assert remaining(task) == "1:05:00"
    task.completed = 0.0
    assert remaining(task) == "-:--:--"
    # a resumed run: what was there before took no time
    task.fields, task.completed, task.elapsed = {"begun": 50.0}, 75.0, 10.0
    assert remaining(task) == "0:00:10"
    task.time_remaining = 7.0
    assert remaining(task) == "0:00:07"


def test_schemes_that_need_another_cost_are_refused_before_any_work(tmp_path):
    result, out = _run(tmp_path, CONFIG.replace("step = 0.1", 'step = 0.1\ncost = "midpoint"', 1))
    assert result.exit_code == 2, result.output
    assert "[converge] schemes and [run] cost: cost must be 'source' for scheme 'midpoint'" in (
        result.output
    )
    assert not out.exists()
