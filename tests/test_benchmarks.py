"""The benchmarks run, agree on what both sides compute, and write their page."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import jko
import numpy as np
import pytest
from jko.problems import reference_case

FOLDER = Path(__file__).parents[1] / "experiments" / "benchmarks"


@pytest.fixture
def module(monkeypatch):
    """Import one of the scripts by name, and forget all of them afterwards."""
    monkeypatch.syspath_prepend(FOLDER)
    names = [path.stem for path in FOLDER.glob("*.py")]
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page and the results of one quick run."""
    out = tmp_path_factory.mktemp("benchmarks")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        patch.setattr(sys, "argv", ["run.py", "--quick", "--out", str(out)])
        try:
            runpy.run_path(str(FOLDER / "run.py"), run_name="__main__")
        finally:
            for path in FOLDER.glob("*.py"):
                sys.modules.pop(path.stem, None)
    return (out / "benchmarks.md").read_text(encoding="utf-8"), json.loads(
        (out / "benchmarks.json").read_text()
    )


def test_every_benchmark_is_on_the_page(page):
    text, results = page
    assert len(results) == 8
    for section in results:
        assert f"## {section['title']}" in text
        assert section["rows"]
        assert all(len(row) == len(section["columns"]) for row in section["rows"])
    names = " ".join(verdict["name"] for section in results for verdict in section["verdicts"])
    for letter in "bcdef" if find_spec("torch") is None else "abcdef":
        assert f"({letter})" in names
    if find_spec("torch") is None:
        assert "PyTorch is not installed: its side was left out." in text


def test_the_page_says_what_it_ran_on_and_nothing_private(page):
    text, _ = page
    for word in ("Processor: ", "numpy ", "scipy ", "POT ", "BLAS: ", "Load average", "--quick"):
        assert word in text
    assert str(Path.home()) not in text
    assert str(FOLDER.parents[1]) not in text
    assert "nan" not in text.lower().split()


def test_tables_are_tables(page):
    """Every row of a table has the columns of its head, bars in cells being escaped."""
    text, _ = page
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("| ")]
    assert len(blocks) == 9
    for lines in blocks:
        counts = {line.replace(r"\|", "").count("|") for line in lines}
        assert len(counts) == 1


def test_both_sides_of_a_velocity_compute_the_same(module):
    velocities, problems = module("velocities"), module("_problems")
    model, cloud = problems.gaussian(40, 3)
    heads = model.heads(0)
    arrays = (cloud.points, cloud.weights, heads.matrices, heads.weights)
    for optimize in (False, True):
        plain = velocities.einsum_velocity(*arrays, optimize=optimize)
        np.testing.assert_allclose(plain, model.velocity(cloud, 0), atol=1e-14)


def test_both_sides_of_a_step_reach_the_same_objective(module):
    pytest.importorskip("torch")
    torch_step, problems = module("torch_step"), module("_problems")
    model, cloud = problems.gaussian(30, 3)
    result = jko.proximal_step(model, cloud, 0, 0.1)
    heads = model.heads(0)
    arrays = (cloud.points, cloud.weights, heads.matrices, heads.weights)
    trace = torch_step.torch_step(*arrays, 0.1, result.objective + 1e-10)
    assert trace.until(result.objective + 1e-10)[1] == trace.values.size
    assert trace.values[0] == pytest.approx(model.energy(cloud, 0), rel=1e-13)
    assert trace.values.min() >= result.objective - 1e-13


def test_problems_have_the_norms_they_promise(module):
    model, cloud = module("_problems").bounded(10, 4, 3.0)
    assert cloud.n == 10
    np.testing.assert_allclose(model.heads(0).norms, [3, 2.5, 2, 1.5])


def test_measures(module):
    measure = module("_measure")
    assert measure.growth_exponent([1, 10, 100], [3, 30, 300]) == pytest.approx(1)
    assert measure.ratio([2.0, 9.0, 4.0], [1.0, 1.0, 1.0]) == 4
    assert [measure.duration(t) for t in (2.0, 0.0123, 4e-5)] == ["2 s", "12.3 ms", "40 µs"]
    calls = []
    measure.PAUSE = measure.WARM = 0.0
    times = measure.interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    # one run to warm up, and one before each that is measured
    assert calls == list("aabb" * 3)
    assert [len(times[name]) for name in "ab"] == [2, 2]
    # a side that is quicker than the warm-up works through it, then the median of some runs counts
    calls.clear()
    measure.WARM, measure.RUNS = 0.001, 4
    measure.interleaved({"a": lambda: calls.append(time.perf_counter())}, 2, warm=False)
    assert calls[-5] - calls[0] > 0.001
    assert len(calls) > 10


def test_passes_are_counted_where_they_happen(module):
    accuracy = module("accuracy")
    problem = reference_case("circle_two_heads")
    with accuracy.counted_passes(problem.model) as count:
        problem.model.velocity(problem.cloud, 0)
        problem.model.energy(problem.cloud, 0)
    problem.model.energy(problem.cloud, 0)
    assert count == [2]
