"""Validators shared by the public constructors: short checks with specific messages."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

#: Inputs whose unit norm or unit mass is met to this tolerance (float32 rounding) are
#: rescaled in double precision; anything worse is an error.
UNIT_TOLERANCE = 1e-6


def as_array(value: ArrayLike, name: str) -> NDArray[Any]:
    """``np.asarray``, with an error that names the argument for ragged lists."""
    try:
        return np.asarray(value)
    except ValueError as problem:
        raise ValueError(f"{name} must be a rectangular array: {problem}") from None


def finite_array(value: ArrayLike, name: str, ndim: int) -> Array:
    """A float64 copy of ``value`` with ``ndim`` axes and finite entries, or a clear error."""
    raw = as_array(value, name)
    if raw.dtype == object or not (
        np.issubdtype(raw.dtype, np.number) or np.issubdtype(raw.dtype, np.bool_)
    ):
        raise TypeError(f"{name} must be a real numeric array, got dtype {raw.dtype}")
    if np.iscomplexobj(raw):
        raise TypeError(f"{name} must be real, got dtype {raw.dtype}")
    if raw.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} axes, got shape {raw.shape}")
    array = np.array(raw, dtype=float)
    bad = ~np.isfinite(array)
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(f"{name} must be finite, got {name}{list(index)} = {array[index]}")
    return array


def require_unit(points: Array, name: str, remedy: str = "") -> None:
    """Raise unless the rows of ``points`` are unit vectors up to float32 rounding."""
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(points, axis=1)
    off = np.abs(norms - 1)
    if (off > UNIT_TOLERANCE).any():
        index = int(np.argmax(off))
        raise ValueError(
            f"{name} must be unit vectors, got |{name}[{index}]| = {norms[index]:.6g}{remedy}"
        )


def probability_weights(weights: ArrayLike | None, count: int, name: str) -> Array:
    """Nonnegative weights of shape (count,) with unit sum; uniform for ``None``."""
    if weights is None:
        return np.full(count, 1 / count)
    array = finite_array(weights, name, 1)
    if array.shape != (count,):
        raise ValueError(f"{name} must have shape ({count},), got {array.shape}")
    if (array < 0).any():
        index = int(np.argmax(array < 0))
        raise ValueError(f"{name} must be nonnegative, got {name}[{index}] = {array[index]}")
    total = array.sum()
    if abs(total - 1) > UNIT_TOLERANCE:
        raise ValueError(f"{name} must sum to 1, got {total}; divide them by their sum")
    # a sum that is one to rounding is left alone, so that reading a cloud back changes no bit
    return array if abs(total - 1) <= 16 * np.finfo(float).eps else array / total


def frozen(array: Array) -> Array:
    array.setflags(write=False)
    return array


def finite_number(value: Any, name: str) -> float:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a real number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return float(value)


def positive_number(value: Any, name: str) -> float:
    number = finite_number(value, name)
    if number <= 0:
        raise ValueError(f"{name} must be positive, got {number}")
    return number


def positive_integer(value: Any, name: str, minimum: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")
    return int(value)


def choice(value: Any, name: str, options: tuple[str, ...]) -> str:
    if value not in options:
        listed = ", ".join(repr(option) for option in options)
        raise ValueError(f"{name} must be one of {listed}, got {value!r}")
    return str(value)


def time_span(value: Any) -> tuple[float, float]:
    try:
        start, end = value
    except (TypeError, ValueError):
        raise ValueError(f"t_span must be a pair (start, end), got {value!r}") from None
    start, end = finite_number(start, "t_span[0]"), finite_number(end, "t_span[1]")
    if end < start:
        raise ValueError(f"t_span must not run backwards, got ({start}, {end})")
    return start, end
