"""Curves on disk: one Zarr v3 group per curve, written as the run goes.

Layout of a curve's group (a directory)::

    attributes          kind, scheme, cost, status, detail, evaluations, format
    time, points, weights, energy, integral_*          along the dimension "time"
    step_*, certificate_*, stats_*                     along the dimension "step"
    model/              attributes: the description of the model; arrays: its matrices
    run/                attributes: the parameters of the run; array "completed"

``xarray.open_zarr(path)`` reads it, and so does `jko.load`.  (A run that is going on, or was killed, has no
consolidated metadata yet: xarray then wants ``consolidated=False``.)

What a killed process leaves.  Every file is replaced as a whole, and ``run/completed``, the number
of states that are complete, is written after everything it counts.  `load_curve` reads that
many, so a process may die between any two writes; reopening the store for writing cuts
every array back to them.  (A death between the resizes of one write, about 0.02 s of every
second, leaves arrays of two lengths: xarray refuses those until they are cut.)
"""

from __future__ import annotations

import time as clock
from collections.abc import Mapping
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..attention.model import AttentionModel
from .columns import INTEGRAL, Column, curve_columns, curve_snapshots, records, snapshot_columns
from .curve import Curve, CurveStatus
from .groups import FORMAT, Group, StoreError, consolidate, open_group
from .monitors import Snapshot
from .paths import UnstorablePathError, decode_model, encode_model

if TYPE_CHECKING:
    import xarray

__all__ = [
    "StoreError",
    "StoreWriter",
    "curve_to_xarray",
    "load_curve",
    "run_parameters",
    "save_curve",
]

#: Numbers in one chunk of a growing array: small enough to be rewritten with every append.
CHUNK_NUMBERS = 32_768

#: Seconds between writes of a run: one write takes about 0.05 s, whatever it holds.
WRITE_EVERY = 1.0

CALLABLE_PATH = "the weight path was a callable, which a store cannot hold, so model is None"


def save_curve(curve: Curve, path: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Write ``curve`` as one Zarr v3 group in the directory ``path``.

    Raises
    ------
    StoreError
        If ``path`` exists and either is no stored curve or ``overwrite`` is false.
    """
    StoreWriter(
        path,
        model=curve.model,
        kind=curve.kind,
        scheme=curve.scheme,
        cost=curve.cost,
        overwrite=overwrite,
    ).finish(curve)


def curve_to_xarray(curve: Curve) -> xarray.Dataset:
    """The dataset that `xarray.open_zarr` reads from a stored ``curve``."""
    import xarray

    variables = {
        name: (column.dims, column.values, column.attributes(name))
        for name, column in curve_columns(curve).items()
    }
    return xarray.Dataset(variables, attrs=_curve_attributes(curve))


def load_curve(path: str | PathLike[str]) -> Curve:
    """Read a curve, exactly as it was; of a run that was killed, what was complete.

    Where the weight path was a bare callable, ``model`` is None and ``message`` says so.

    Raises
    ------
    StoreError
        If ``path`` holds no curve.

    Examples
    --------
    >>> import tempfile, jko
    >>> model = jko.AttentionModel(jko.Heads.gaussian(2, rng=0))
    >>> cloud = jko.TokenCloud.octahedral(6, rng=1)
    >>> curve = jko.minimizing_movement(model, cloud, (0, 0.1), step=0.05)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     curve.save(f"{folder}/curve.zarr")
    ...     print(jko.load(f"{folder}/curve.zarr"))
    Curve(jko movement, t = 0 .. 0.1, 2 intervals, n = 6, d = 3, complete)
    """
    group = open_group(path, "r")
    completed = _completed(group)
    if completed == 0:
        raise StoreError(f"{path} holds a run that was stopped before its first state was stored")
    attributes = dict(group.attrs)
    columns = _read_columns(group, completed)
    steps = records(columns)
    spent = sum(step.stats.gradient_evaluations for step in steps)
    model = _read_model(group)
    detail = str(attributes["detail"])
    if model is None and CALLABLE_PATH not in detail:
        detail = f"{detail}; {CALLABLE_PATH}" if detail else CALLABLE_PATH
    return Curve(
        model=model,
        kind=str(attributes["kind"]),
        scheme=str(attributes["scheme"]),
        times=columns["time"].values,
        points=columns["points"].values,
        weights=columns["weights"].values,
        energy=columns["energy"].values,
        steps=steps,
        integrals={
            name.removeprefix(INTEGRAL): column.values
            for name, column in columns.items()
            if name.startswith(INTEGRAL)
        },
        evaluations=int(attributes.get("evaluations", spent)),
        cost=str(attributes["cost"]),
        status=CurveStatus[str(attributes["status"])],
        detail=detail,
    )


def run_parameters(path: str | PathLike[str]) -> dict[str, Any]:
    """The parameters of the run stored at ``path``; empty for a curve that was only saved."""
    return {name: _from_json(value) for name, value in open_group(path, "r")["run"].attrs.items()}


class StoreWriter:
    """A monitor that stores a run as it goes.

    Parameters
    ----------
    path : path-like
        Directory of the store; it must not exist yet, unless ``overwrite`` is set and it holds
        a curve.
    model : AttentionModel or None
    kind, scheme, cost : str
        As in `Curve`.
    parameters : mapping, optional
        The keyword arguments of the run, with which it can be resumed: numbers, strings, None,
        and arrays or nested lists of them.
    every : float
        Seconds between writes; 0 writes every state at once.
    overwrite : bool

    Notes
    -----
    States come in through `snapshot`; `finish` adds how the run ended.  A run that never
    finishes is read as interrupted.  Writing the same states again does no harm, so an
    interruption of a write is made good by the next one.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        model: AttentionModel | None,
        kind: str,
        scheme: str,
        cost: str = "source",
        parameters: Mapping[str, Any] | None = None,
        every: float = WRITE_EVERY,
        overwrite: bool = False,
    ) -> None:
        _require_free(Path(path), overwrite)
        self._path = Path(path)
        self._overwrite = overwrite
        self._model = model
        self._kind = kind
        self._attributes = {"kind": kind, "scheme": scheme, "cost": cost}
        self._parameters = {name: _to_json(value) for name, value in (parameters or {}).items()}
        self._every = every
        self._group: Group | None = None
        self._pending: list[Snapshot] = []
        self._completed = 0
        self._written_at = -np.inf

    @classmethod
    def reopen(cls, path: str | PathLike[str], every: float = WRITE_EVERY) -> StoreWriter:
        """A writer that goes on after the last complete state of the store at ``path``."""
        group = open_group(path, "r+")
        kind, scheme, cost = (str(group.attrs[name]) for name in ("kind", "scheme", "cost"))
        writer = cls(
            path, model=None, kind=kind, scheme=scheme, cost=cost, every=every, overwrite=True
        )
        writer._group = group
        writer._completed = _completed(group)
        writer._written_at = clock.monotonic()
        for _, array in group.arrays():
            array.resize((_length(array, writer._completed), *array.shape[1:]))
        group.attrs["status"] = CurveStatus.INTERRUPTED.name
        return writer

    def snapshot(self, snapshot: Snapshot) -> None:
        """Take a state, and write what is waiting if it is time to."""
        self._pending.append(snapshot)
        if clock.monotonic() - self._written_at >= self._every:
            self.flush()

    def progress(self, time: float) -> None:
        """Nothing to do: only states are stored."""

    def flush(self) -> None:
        """Write all states that are waiting."""
        if not self._pending:
            return
        if self._group is None:
            self._group = self._create()
        group = self._group
        known = {
            name: tuple(array.attrs["names"])
            for name, array in group.arrays()
            if "names" in array.attrs
        }
        columns = snapshot_columns(self._pending, self._kind, known)
        total = self._completed + len(self._pending)
        arrays = {name: _growing(group, name, column) for name, column in columns.items()}
        # all sizes change together, before any data: readers see one length for longest
        for array in arrays.values():
            array.resize((_length(array, total), *array.shape[1:]))
        for name, column in columns.items():
            if column.values.size:
                arrays[name][-len(column.values) :] = column.values
        group["run/completed"][()] = total
        self._completed = total
        self._pending.clear()
        self._written_at = clock.monotonic()

    def finish(self, curve: Curve) -> None:
        """Write what is still missing of ``curve``, and how it ended."""
        self._pending = list(curve_snapshots(curve, self._completed))
        self.flush()
        assert self._group is not None  # a curve has at least one state
        self._group.attrs.update(_curve_attributes(curve))
        consolidate(self._path)

    def _create(self) -> Group:
        import zarr

        group = zarr.create_group(store=self._path, zarr_format=3, overwrite=self._overwrite)
        _write_model(group, self._model)
        run = group.create_group("run", attributes=self._parameters)
        run.create_array("completed", shape=(), dtype="int64", compressors=None)
        opened = {"status": CurveStatus.INTERRUPTED.name, "detail": ""}
        group.attrs.update(_signature() | self._attributes | opened)
        return group


def _growing(group: Group, name: str, column: Column) -> Any:
    """The growing array of a column, made on first use, with its current names."""
    if name in group:
        array = group[name]
        if column.names is not None and list(column.names) != array.attrs["names"]:
            array.attrs["names"] = list(column.names)
        return array
    row = column.values.shape[1:]
    return group.create_array(
        name,
        shape=(0, *row),
        chunks=_chunks(column.values),
        dtype=column.values.dtype,
        dimension_names=column.dims,
        attributes=column.attributes(name),
    )


def _chunks(values: NDArray[Any]) -> tuple[int, ...]:
    row = tuple(max(1, size) for size in values.shape[1:])
    return max(1, CHUNK_NUMBERS // int(np.prod(row))), *row


def _signature() -> dict[str, Any]:
    return {"format": FORMAT, "version": version("jko")}


def _curve_attributes(curve: Curve) -> dict[str, Any]:
    return _signature() | {
        "kind": curve.kind,
        "scheme": curve.scheme,
        "cost": curve.cost,
        "status": curve.status.name,
        "detail": curve.detail,
        "evaluations": curve.evaluations,
    }


def _require_free(path: Path, overwrite: bool) -> None:
    if not path.exists():
        return
    if not overwrite:
        raise StoreError(f"{path} exists already; remove it, or choose another path")
    open_group(path, "r")  # refuses anything that is not a stored curve


def _completed(group: Group) -> int:
    return int(group["run/completed"][()])


def _length(array: Any, completed: int) -> int:
    """Length of an array when so many states are complete: the first has no step."""
    return completed if array.metadata.dimension_names[0] == "time" else max(completed - 1, 0)


def _read_columns(group: Group, completed: int) -> dict[str, Column]:
    columns = {}
    for name, array in group.arrays():
        names = array.attrs.get("names")
        columns[name] = Column(
            dims=tuple(array.metadata.dimension_names),
            values=array[: _length(array, completed)],
            names=None if names is None else tuple(names),
        )
    return columns


def _write_model(group: Group, model: AttentionModel | None) -> None:
    part = group.create_group("model")
    if model is None:
        return
    try:
        description, arrays = encode_model(model)
    except UnstorablePathError:
        return
    for name, values in arrays.items():
        data = np.ascontiguousarray(values)
        part.create_array(name, data=data, chunks=_chunks(data))
    part.attrs["description"] = description


def _read_model(group: Group) -> AttentionModel | None:
    part = group["model"]
    if "description" not in part.attrs:
        return None
    arrays: dict[str, NDArray[np.float64]] = {name: array[...] for name, array in part.arrays()}
    return decode_model(part.attrs["description"], arrays)


def _to_json(value: Any) -> Any:
    """Numbers exactly (JSON writes the shortest decimal that reads back as the same double)."""
    if isinstance(value, np.ndarray | np.generic):
        return _to_json(value.tolist())
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return {"number": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a run parameter must be a number, string or array, got {value!r}")


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    return float(value["number"]) if isinstance(value, dict) else value
