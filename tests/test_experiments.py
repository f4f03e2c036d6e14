"""Every script in experiments/ runs in its quick mode, and stored members are used again."""

from __future__ import annotations

import csv
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jko.runs.sweep import load_sweep

FOLDER = Path(__file__).parent.parent / "experiments"
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if not path.name.startswith("_"))

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a script as ``python experiments/NAME.py --quick --out FOLDER``, in this process."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.chdir(tmp_path)

    def run(script, *options):
        out = tmp_path / "out"
        arguments = [str(script), "--quick", "--out", str(out), *options]
        monkeypatch.setattr(sys, "argv", arguments)
        runpy.run_path(str(script), run_name="__main__")
        return out

    return run


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_quick_mode(script, run, tmp_path, capsys):
    out = run(script)
    printed = capsys.readouterr().out
    if printed.startswith("skipped:"):
        pytest.skip(printed.strip())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    tables = list(out.rglob("*.csv"))
    assert tables
    for table in tables:
        with table.open(newline="") as stream:
            rows = list(csv.reader(stream))
        assert len(rows) >= 2
        assert "nan" not in {cell.lower() for row in rows for cell in row}
    for figure in out.rglob("*.png"):
        content = figure.read_bytes()
        assert content.startswith(PNG)
        assert len(content) > 5000


def test_a_second_run_only_draws(run):
    out = run(FOLDER / "regimes.py")
    stored = sorted((out / "members").iterdir())
    before = [path.stat().st_mtime_ns for path in stored]
    figures = {path: path.read_bytes() for path in out.glob("*.png")}
    assert stored
    assert figures
    for path in figures:
        path.unlink()
    run(FOLDER / "regimes.py")
    assert [path.stat().st_mtime_ns for path in stored] == before
    assert {path: path.read_bytes() for path in out.glob("*.png")} == figures


def test_processes_give_the_same_numbers(run, tmp_path):
    serial = load_sweep(run(FOLDER / "integrability.py") / "paths")
    command = [sys.executable, str(FOLDER / "integrability.py"), "--quick", "--workers", "2"]
    subprocess.run(
        [*command, "--out", str(tmp_path / "pool")], check=True, capture_output=True, cwd=tmp_path
    )
    pooled = load_sweep(tmp_path / "pool" / "paths")
    assert pooled.keys() == serial.keys()
    for name, result in serial.items():
        np.testing.assert_array_equal(pooled[name]["lengths"], result["lengths"])
