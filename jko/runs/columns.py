"""Curves as named columns over the dimensions time and step, and back.

The one place that knows how the scalars of a step are laid out: nested dataclasses are
flattened field by field, names of enumerations and strings become small integer codes with
their names beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from ..steps.result import StepRecord
from .curve import Curve
from .monitors import Snapshot

__all__ = ["Column", "curve_columns", "curve_snapshots", "records", "snapshot_columns"]

INTEGRAL = "integral_"

#: Column names that would read badly if they were put together from prefix and field.
SHORTER = {"step_step": "step_size"}

UNITS = {
    "points": "unit vectors in R^d",
    "energy": "E(mu_k, t_k)",
    "step_distance_squared": "transport cost of the step, weighted by the frozen mobility",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Column:
    """An array over named dimensions, the first of which grows as a run goes.

    Attributes
    ----------
    dims : tuple of str
    values : array
        For named categories, their codes.
    names : tuple of str or None
        What code ``i`` means.
    """

    dims: tuple[str, ...]
    values: NDArray[Any]
    names: tuple[str, ...] | None = None

    def attributes(self, name: str) -> dict[str, Any]:
        """What a store keeps beside the values."""
        described: dict[str, Any] = {} if name not in UNITS else {"long_name": UNITS[name]}
        if self.names is not None:
            described["names"] = list(self.names)
        return described


@dataclass(frozen=True)
class Scalar:
    """One scalar of a step record: its column, where it sits and its type."""

    column: str
    where: tuple[str, ...]
    type: Any


@cache
def step_scalars() -> tuple[Scalar, ...]:
    """All scalars of `StepRecord`, nested ones by the names of both fields."""
    return tuple(_scalars(StepRecord, "step_", ()))


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _scalars(kind: Any, prefix: str, where: tuple[str, ...]) -> Iterator[Scalar]:
    for name, hint in _hints(kind).items():
        inner = (*where, name)
        if is_dataclass(hint):
            yield from _scalars(hint, f"{name}_", inner)
        else:
            column = prefix + name
            yield Scalar(SHORTER.get(column, column), inner, hint)


def curve_snapshots(curve: Curve, start: int = 0) -> Iterator[Snapshot]:
    """The states of a curve, from index ``start`` on."""
    for k in range(start, curve.times.size):
        yield Snapshot(
            time=float(curve.times[k]),
            points=curve.points[k],
            weights=curve.weights[k],
            energy=float(curve.energy[k]),
            record=curve.steps[k - 1] if curve.steps and k > 0 else None,
            integrals={name: float(values[k]) for name, values in curve.integrals.items()},
        )


def curve_columns(curve: Curve) -> dict[str, Column]:
    """All columns of a curve."""
    return snapshot_columns(list(curve_snapshots(curve)), curve.kind)


def snapshot_columns(
    snapshots: Sequence[Snapshot],
    kind: str,
    known: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, Column]:
    """Columns of states in succession; ``known`` are the names that codes already have."""
    columns = {
        "time": _floats("time", [s.time for s in snapshots]),
        "points": Column(
            dims=("time", "token", "coordinate"), values=np.array([s.points for s in snapshots])
        ),
        "weights": Column(dims=("time", "token"), values=np.array([s.weights for s in snapshots])),
        "energy": _floats("time", [s.energy for s in snapshots]),
    }
    for name in snapshots[0].integrals:
        columns[INTEGRAL + name] = _floats("time", [s.integrals[name] for s in snapshots])
    if kind == "movement":
        done = [s.record for s in snapshots if s.record is not None]
        for scalar in step_scalars():
            values = [_dig(record, scalar.where) for record in done]
            columns[scalar.column] = _column(values, scalar, (known or {}).get(scalar.column, ()))
    return columns


def _floats(dim: str, values: Sequence[float]) -> Column:
    return Column(dims=(dim,), values=np.array(values, dtype=float))


def _dig(record: StepRecord, where: tuple[str, ...]) -> Any:
    value: Any = record
    for name in where:
        value = getattr(value, name)
    return value


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _column(values: list[Any], scalar: Scalar, known: tuple[str, ...]) -> Column:
    if scalar.type in (float, int, bool):
        kind = {float: np.float64, int: np.int64, bool: np.bool_}[scalar.type]
        return Column(dims=("step",), values=np.array(values, dtype=kind))
    if _is_enum(scalar.type):
        known = tuple(dict.fromkeys([*known, *scalar.type.__members__]))
        values = [value.name for value in values]
    elif scalar.type is not str:
        raise TypeError(f"{scalar.column} has type {scalar.type!r}, which has no column")
    names = tuple(dict.fromkeys([*known, *values]))
    codes = np.array([names.index(value) for value in values], dtype=np.int16)
    return Column(dims=("step",), values=codes, names=names)


def records(columns: Mapping[str, Column]) -> tuple[StepRecord, ...]:
    """The step records that `snapshot_columns` flattened.

    A scalar without a column takes the default of its field: stores written before the field
    existed stay readable.
    """
    if "step_status" not in columns:
        return ()
    plain = {
        scalar.where: _plain(columns[scalar.column], scalar)
        for scalar in step_scalars()
        if scalar.column in columns
    }
    count = columns["step_status"].values.size
    return tuple(_record(StepRecord, (), plain, k) for k in range(count))


def _plain(column: Column, scalar: Scalar) -> list[Any]:
    values: list[Any] = column.values.tolist()
    if column.names is None:
        return values
    named = [column.names[code] for code in values]
    return [scalar.type[name] for name in named] if _is_enum(scalar.type) else named


def _record(
    kind: Any, where: tuple[str, ...], plain: Mapping[tuple[str, ...], list[Any]], k: int
) -> Any:
    hints = _hints(kind)
    values = {}
    for f in fields(kind):
        inner = (*where, f.name)
        if is_dataclass(hints[f.name]):
            values[f.name] = _record(hints[f.name], inner, plain, k)
        elif inner in plain:
            values[f.name] = plain[inner][k]
        elif f.default is MISSING and f.default_factory is MISSING:
            raise KeyError(f"no column holds {'.'.join(inner)} of the steps")
    return kind(**values)
