"""Sweeps: results stored one by one, resumed after any death, on any executor."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from jko.runs.sweep import CALL, SweepError, load_sweep, run_sweep

MODULE = """
import os, time
from pathlib import Path
import numpy as np

def member(*, seed, log, pause=0.0):
    with open(Path(log) / f"{seed}.log", "a") as stream:
        stream.write(f"{os.getpid()}\\n")
    time.sleep(pause)
    return {"noise": np.random.default_rng(seed).standard_normal(5), "seed": seed}
"""

KILLED = """
import sys
from jko.runs.sweep import run_sweep
sys.path.insert(0, sys.argv[1])
import sweep_members
if __name__ == "__main__":
    log, out = sys.argv[2:4]
    run_sweep(
        sweep_members.member,
        {f"seed={s}": {"seed": s, "log": log, "pause": 0.2} for s in range(10)},
        out,
        workers=2,
    )
"""


def square(*, value):
    return {"square": value**2, "name": "x"}


def troubled(*, value):
    if value == 2:
        raise ArithmeticError("two is too much")
    return {"square": value**2}


def grid(*values):
    return {f"value={v}": {"value": v} for v in values}


def test_results_are_stored_and_not_computed_again(tmp_path):
    calls = []

    def counted(*, value):
        calls.append(value)
        return square(value=value)

    heard = []
    first = run_sweep(
        counted, grid(3, 1), tmp_path, workers=0, progress=lambda *args: heard.append(args)
    )
    assert list(first) == ["value=3", "value=1"]
    assert [int(r["square"]) for r in first.values()] == [9, 1]
    assert heard == [("", 0, 2), ("value=3", 1, 2), ("value=1", 2, 2)]
    second = run_sweep(counted, grid(3, 2, 1), tmp_path, workers=0)
    assert calls == [3, 1, 2]
    assert [int(r["square"]) for r in second.values()] == [9, 4, 1]
    stored = load_sweep(tmp_path)
    assert list(stored) == ["value=1", "value=2", "value=3"]
    assert str(stored["value=2"]["name"]) == "x"
    assert CALL not in stored["value=2"]


def test_failures_leave_the_others_and_are_tried_again(tmp_path):
    with pytest.raises(SweepError, match=r"1 of 3 .*value=2.* ArithmeticError: two is too much"):
        run_sweep(troubled, grid(1, 2, 3), tmp_path, workers=0)
    assert list(load_sweep(tmp_path)) == ["value=1", "value=3"]
    with pytest.raises(SweepError, match="1 of 3"):
        run_sweep(troubled, grid(1, 2, 3), tmp_path, workers=0)


def test_a_directory_holds_one_sweep(tmp_path):
    run_sweep(square, grid(1), tmp_path, workers=0)
    with pytest.raises(SweepError, match=r"value=1\.npz holds the result of another call"):
        run_sweep(square, {"value=1": {"value": 2}}, tmp_path, workers=0)
    with pytest.raises(SweepError, match="another call"):
        run_sweep(troubled, grid(1), tmp_path, workers=0)
    (tmp_path / "value=7.npz").write_bytes(b"not an archive")
    with pytest.raises(SweepError, match=r"value=7\.npz holds no result"):
        run_sweep(square, grid(7), tmp_path, workers=0)


def test_arrays_and_objects_are_recognised_by_content(tmp_path):
    def total(*, values, scale):
        return {"total": scale * np.sum(values)}

    members = {"a": {"values": np.arange(4.0), "scale": np.float64(2)}}
    assert run_sweep(total, members, tmp_path, workers=0)["a"]["total"] == 12
    run_sweep(total, members, tmp_path, workers=0)
    with pytest.raises(SweepError, match="another call"):
        run_sweep(total, {"a": {"values": np.ones(4), "scale": 2.0}}, tmp_path, workers=0)


def test_invalid_arguments(tmp_path):
    with pytest.raises(ValueError, match="members must have names"):
        run_sweep(square, {"../up": {"value": 1}}, tmp_path, workers=0)
    with pytest.raises(ValueError, match="workers must be 0 or more, got -1"):
        run_sweep(square, grid(1), tmp_path, workers=-1)
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="workers must be None"):
        run_sweep(square, grid(1), tmp_path, executor=pool, workers=1)
    with pytest.raises(SweepError, match="must be an array of plain data"):
        run_sweep(lambda: {"bad": [object()]}, {"a": {}}, tmp_path, workers=0)
    with pytest.raises(SweepError, match="no results"):
        load_sweep(tmp_path / "nothing")
    assert run_sweep(square, {}, tmp_path) == {}


@pytest.fixture
def members(tmp_path, monkeypatch):
    """A module that other processes can import, and a folder for its log."""
    (tmp_path / "sweep_members.py").write_text(MODULE)
    (tmp_path / "log").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    sys.modules.pop("sweep_members", None)
    return importlib.import_module("sweep_members"), str(tmp_path / "log")


def test_a_pool_of_processes_gives_the_same(tmp_path, members):
    module, log = members
    calls = {f"seed={s}": {"seed": s, "log": log} for s in range(3)}
    pooled = run_sweep(module.member, calls, tmp_path / "pool", workers=2)
    serial = run_sweep(module.member, calls, tmp_path / "serial", workers=0)
    for name in calls:
        assert np.array_equal(pooled[name]["noise"], serial[name]["noise"])
    pids = {p.read_text().split()[0] for p in Path(log).iterdir()}
    assert str(os.getpid()) not in pids


def test_any_executor(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        results = run_sweep(square, grid(*range(6)), tmp_path, executor=pool)
    assert [int(r["square"]) for r in results.values()] == [0, 1, 4, 9, 16, 25]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # a zombie has ended; only its parent has not asked
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 here")
def test_killed_sweep_resumes_with_nothing_lost(tmp_path, members):
    module, log = members
    script = tmp_path / "script.py"
    script.write_text(KILLED)
    out = tmp_path / "out"
    command = [sys.executable, str(script), str(tmp_path), log, str(out)]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 60
    while len(list(out.glob("*.npz"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    done = set(load_sweep(out))
    assert 3 <= len(done) < 10
    if Path("/proc").is_dir():
        pids = {int(p.read_text().split()[0]) for p in Path(log).iterdir()}
        while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(alive(pid) for pid in pids)  # workers end with their parent
    calls = {f"seed={s}": {"seed": s, "log": log, "pause": 0.2} for s in range(10)}
    resumed = run_sweep(module.member, calls, out, workers=0)
    for s in range(10):
        expected = np.random.default_rng(s).standard_normal(5)
        assert np.array_equal(resumed[f"seed={s}"]["noise"], expected)
        runs = len((Path(log) / f"{s}.log").read_text().split())
        assert runs == 1 if f"seed={s}" in done else runs <= 2
    assert not list(out.glob(".*.part"))


@pytest.mark.filterwarnings("default")  # what a cluster library warns about is not ours
def test_on_a_local_cluster(tmp_path):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        results = run_sweep(square, grid(1, 2, 3), tmp_path, executor=client.get_executor())
    assert [int(r["square"]) for r in results.values()] == [1, 4, 9]
    assert run_sweep(square, grid(1, 2, 3), tmp_path, workers=0).keys() == results.keys()
