"""The command ``jko converge``."""

import csv

import numpy as np
import pytest
from jko.cli.app import app
from jko.cli.converge import orders_table, verdict
from jko.diagnostics.convergence_table import ConvergenceTable
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


def _table(errors):
    columns = np.ones(len(errors))
    return ConvergenceTable(
        scheme="midpoint",
        reference="gradient flow",
        expected_order=2,
        steps=0.1 / 2 ** np.arange(len(errors)),
        errors=errors,
        final_errors=errors,
        labelled_errors=errors,
        evaluations=columns,
        seconds=columns,
    )


def test_the_verdict_follows_the_finest_pair():
    late = _table([1e-2, 5e-3, 1.25e-3])
    assert late.order == pytest.approx(1.5)
    assert verdict(late) == "holds"
    assert verdict(_table([1e-2, 2.5e-3, 1.25e-3])) == "differs"
    assert orders_table([late]).row_count == 8
