"""Sweeps: many independent runs, each stored when it ends, so that a killed sweep goes on.

A member is a name and the keyword arguments of one call; its result is a mapping of arrays.  The
process that starts the sweep writes every result as it arrives: workers need no common file
system, and a file is complete or absent.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import pickle
import re
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["SweepError", "load_sweep", "run_sweep"]

Result = dict[str, NDArray[Any]]
Function = Callable[..., Mapping[str, ArrayLike]]
Progress = Callable[[str, int, int], None]

SUFFIX = ".npz"

#: Array of a member's file that holds what was called, and with what.
CALL = "sweep_call"

NAMES = re.compile(r"[A-Za-z0-9_=+,-][A-Za-z0-9_.=+,-]*")


class SweepError(RuntimeError):
    """Some members failed, or the directory holds results of another sweep."""


def run_sweep(
    function: Function,
    members: Mapping[str, Mapping[str, Any]],
    out: str | os.PathLike[str],
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Result]:
    """Call ``function(**parameters)`` for every member that has no stored result yet.

    Parameters
    ----------
    function : callable
        Returns a mapping of names to arrays.  Picklable, unless ``workers`` is 0.
    members : mapping of str to mapping
        Name of every member and its keyword arguments.  The name becomes a file name.
    out : path-like
        Directory of the results, one ``NAME.npz`` a member; made if missing.  One sweep at a
        time may write to it.
    executor : concurrent.futures.Executor, optional
        Runs the calls.  On a cluster, ``dask.distributed.Client.get_executor()``.
        By default a pool of processes that lives for this sweep.
    workers : int, optional
        Processes of that pool; by default the processors available.  0: one call after the
        other in this process.
    progress : callable, optional
        Called with the name of the member that just ended, how many have ended and how many
        there are; once with an empty name before the first.

    Returns
    -------
    dict of str to dict of str to array
        Results in the order of ``members``.

    Raises
    ------
    SweepError
        After all others have ended, if a member failed; it is tried again by the next sweep.
        At once, if ``out`` holds a result of that name for another call.
    ValueError, TypeError
        For invalid arguments.

    Notes
    -----
    Results are recognised by the name of the function and by the parameters; after a change of
    the function's body, choose another directory.
    """
    directory = Path(out)
    calls = {name: _call(function, name, parameters) for name, parameters in members.items()}
    if executor is not None and workers is not None:
        raise ValueError("workers must be None when an executor is given")
    if workers is not None and workers < 0:
        raise ValueError(f"workers must be 0 or more, got {workers}")
    directory.mkdir(parents=True, exist_ok=True)
    for left in directory.glob(".*.part"):
        left.unlink()
    done = {name: _read(directory, name, call) for name, call in calls.items()}
    results = {name: result for name, result in done.items() if result is not None}
    todo = {name: members[name] for name in members if name not in results}
    report = progress or _silent
    report("", len(results), len(members))
    failures: dict[str, BaseException] = {}
    for name, outcome in _outcomes(function, todo, executor, workers):
        try:
            results[name] = _write(directory, name, calls[name], outcome())
        except Exception as problem:  # whatever a member raises is its own failure
            failures[name] = problem
        report(name, len(results) + len(failures), len(members))
    if failures:
        first, cause = next(iter(failures.items()))
        raise SweepError(
            f"{len(failures)} of {len(members)} members failed ({', '.join(sorted(failures))}); "
            f"the first, {first}: {type(cause).__name__}: {cause}. The others are stored in "
            f"{directory}, and only these would run again"
        ) from cause
    return {name: results[name] for name in members}


def load_sweep(out: str | os.PathLike[str]) -> dict[str, Result]:
    """All results stored in the directory ``out``, by name, in alphabetical order.

    Raises
    ------
    SweepError
        If there are none.
    """
    names = sorted(path.name.removesuffix(SUFFIX) for path in Path(out).glob(f"*{SUFFIX}"))
    stored = {name: _read(Path(out), name, None) for name in names}
    if not stored:
        raise SweepError(f"{out} holds no results of a sweep")
    return {name: result for name, result in stored.items() if result is not None}


def _silent(name: str, done: int, total: int) -> None:
    """Tell nobody."""


def _outcomes(
    function: Function,
    todo: Mapping[str, Mapping[str, Any]],
    executor: Executor | None,
    workers: int | None,
) -> Iterator[tuple[str, Callable[[], Mapping[str, ArrayLike]]]]:
    """Members as they end, each with a callable that returns its result or raises."""
    if executor is not None:
        yield from _from_executor(function, todo, executor)
    elif workers == 0 or not todo:
        for name, parameters in todo.items():
            yield name, lambda parameters=parameters: function(**parameters)  # type: ignore[misc]
    else:
        count = min(workers or _processors(), len(todo))
        # spawned, not forked: a fork copies locks that other threads hold
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(count, context, _end_with_parent) as pool:
            yield from _from_executor(function, todo, pool)


def _from_executor(
    function: Function, todo: Mapping[str, Mapping[str, Any]], executor: Executor
) -> Iterator[tuple[str, Callable[[], Mapping[str, ArrayLike]]]]:
    futures: dict[Future[Mapping[str, ArrayLike]], str] = {
        executor.submit(function, **parameters): name for name, parameters in todo.items()
    }
    try:
        for future in as_completed(futures):
            yield futures[future], future.result
    finally:
        for future in futures:
            future.cancel()


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end_with_parent() -> None:
    """Let a worker die with the process that started it, even if that one was killed."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _call(function: Function, name: str, parameters: Mapping[str, Any]) -> str:
    """The call as text, by which a stored result is recognised."""
    if not NAMES.fullmatch(name):
        raise ValueError(
            f"members must have names made of letters, digits and _ . = + , -, got {name!r}"
        )
    called = getattr(function, "__qualname__", type(function).__qualname__)
    described = {key: _describe(value) for key, value in parameters.items()}
    return json.dumps({"function": called, "parameters": described}, sort_keys=True)


def _describe(value: Any) -> Any:
    """Plain data as it is, anything else by the digest of its pickle."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_describe(item) for item in value]
    digest = hashlib.sha256(pickle.dumps(value, protocol=4)).hexdigest()
    return {"type": type(value).__qualname__, "digest": digest}


def _read(directory: Path, name: str, call: str | None) -> Result | None:
    """The stored result of a member, None without one."""
    path = directory / f"{name}{SUFFIX}"
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as archive:
            result = {key: archive[key] for key in archive.files}
        stored = str(result.pop(CALL))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as problem:
        raise SweepError(f"{path} holds no result of a sweep: {problem}") from problem
    if call is not None and stored != call:
        raise SweepError(
            f"{path} holds the result of another call, {stored}, not of {call}; choose another "
            "directory or remove it"
        )
    return result


def _write(directory: Path, name: str, call: str, result: Mapping[str, ArrayLike]) -> Result:
    """Write a result as a whole or not at all, and return it as it will be read."""
    arrays = {key: np.asarray(value) for key, value in result.items()}
    for key, value in arrays.items():
        if value.dtype.hasobject or key == CALL:
            raise TypeError(f"the result {key!r} of {name} must be an array of plain data")
    part = directory / f".{name}.{os.getpid()}.part"
    with part.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **{CALL: np.array(call)}, **arrays)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(part, directory / f"{name}{SUFFIX}")
    return arrays
