"""Models as plain data and back, bit for bit: what a store holds of the heads and their path.

A description is a mapping of JSON values, the matrices and weights go into named float64
arrays.  Everything restored here has exactly the bits that were stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._validation import frozen
from ..attention.heads import Heads
from ..attention.model import AttentionModel
from ..attention.weights import (
    FromFunction,
    Frozen,
    Interpolated,
    OrnsteinUhlenbeck,
    Oscillating,
    Perturbed,
    WeightPath,
)
from ..measures import TokenCloud

__all__ = ["UnstorablePathError", "decode_model", "encode_model", "exact_cloud"]

Array = NDArray[np.float64]
Description = dict[str, Any]
Arrays = dict[str, Array]

#: Function objects of this package are rebuilt from their fields; nothing else is imported.
PACKAGE = __name__.split(".")[0]


class UnstorablePathError(ValueError):
    """A weight path that plain data cannot describe, such as one given by a callable."""


def exact_cloud(points: Array, weights: Array) -> TokenCloud:
    """The cloud with exactly these coordinates and weights, which once belonged to a cloud.

    The constructor normalises, which need not leave every last bit of a unit vector alone.
    """
    cloud = TokenCloud(points, weights)
    object.__setattr__(cloud, "points", frozen(np.array(points, dtype=float)))
    object.__setattr__(cloud, "weights", frozen(np.array(weights, dtype=float)))
    return cloud


def encode_model(model: AttentionModel) -> tuple[Description, Arrays]:
    """Description and arrays of a model.

    Raises
    ------
    UnstorablePathError
        If its weight path is a bare callable or a class of the user's own.
    """
    arrays: Arrays = {}
    options = {name: getattr(model, name) for name in signature(AttentionModel).parameters}
    options["path"] = _encode_path(model.path, "path", arrays)
    return options, arrays


def decode_model(description: Description, arrays: Mapping[str, Array]) -> AttentionModel:
    """The model that `encode_model` described."""
    options = dict(description)
    path = _decode_path(options.pop("path"), "path", arrays)
    return AttentionModel(path, **options)


def _encode_path(path: WeightPath, name: str, arrays: Arrays) -> Description:
    if type(path) is Frozen:
        _put_heads(path.heads, name, arrays)
        return {"kind": "frozen"}
    if type(path) is Oscillating:
        _put_heads(path.heads0, name, arrays)
        return {"kind": "oscillating"}
    if isinstance(path, Interpolated):
        return _encode_sampled(path, name, arrays)
    if type(path) is Perturbed:
        return {
            "kind": "perturbed",
            "epsilon": path.epsilon,
            "base": _encode_path(path.base, f"{name}.base", arrays),
            "direction": _encode_path(path.direction, f"{name}.direction", arrays),
        }
    if isinstance(path, FromFunction):
        return _encode_function(path, name, arrays)
    raise UnstorablePathError(f"a weight path of class {type(path).__name__} cannot be stored")


def _decode_path(described: Description, name: str, arrays: Mapping[str, Array]) -> WeightPath:
    kind = described["kind"]
    if kind == "frozen":
        return Frozen(_heads(name, arrays))
    if kind == "oscillating":
        return Oscillating(_heads(name, arrays))
    if kind == "perturbed":
        return Perturbed(
            _decode_path(described["base"], f"{name}.base", arrays),
            _decode_path(described["direction"], f"{name}.direction", arrays),
            described["epsilon"],
        )
    if kind == "function":
        return _decode_function(described, name, arrays)
    if kind in ("interpolated", "ornstein_uhlenbeck"):
        return _decode_sampled(described, name, arrays)
    raise UnstorablePathError(f"unknown kind of weight path {kind!r}")


def _put_heads(heads: Heads, name: str, arrays: Arrays) -> None:
    arrays[f"{name}.matrices"], arrays[f"{name}.weights"] = heads.matrices, heads.weights


def _heads(name: str, arrays: Mapping[str, Array]) -> Heads:
    return Heads(arrays[f"{name}.matrices"], arrays[f"{name}.weights"])


def _encode_sampled(path: Interpolated, name: str, arrays: Arrays) -> Description:
    for part in ("times", "matrices", "weights"):
        arrays[f"{name}.{part}"] = getattr(path, part)
    if isinstance(path, OrnsteinUhlenbeck):
        return {
            "kind": "ornstein_uhlenbeck",
            "variance": path.variance,
            "base_step": path.base_step,
        }
    return {"kind": "interpolated"}


def _decode_sampled(
    described: Description, name: str, arrays: Mapping[str, Array]
) -> Interpolated:
    """The sampled path itself, never a new sample."""
    times, matrices, weights = (
        arrays[f"{name}.{part}"] for part in ("times", "matrices", "weights")
    )
    if described["kind"] == "interpolated":
        path = Interpolated(times, matrices, weights)
    else:
        path = OrnsteinUhlenbeck.__new__(OrnsteinUhlenbeck)
        Interpolated.__init__(path, times, matrices, weights)
        path.variance = described["variance"]
        path.base_step = described["base_step"]
    return path


def _encode_function(path: FromFunction, name: str, arrays: Arrays) -> Description:
    """A function object that is a dataclass of this package, by its class and fields."""
    function: Any = path.function
    derivative = path._derivative
    kind = type(function)
    ours = is_dataclass(function) and kind.__module__.split(".")[0] == PACKAGE
    if not ours or derivative not in (None, getattr(function, "derivative", None)):
        raise UnstorablePathError("a weight path given by a callable cannot be stored")
    numbers: dict[str, float] = {}
    for f in fields(function):
        value = getattr(function, f.name)
        if isinstance(value, np.ndarray):
            arrays[f"{name}.{f.name}"] = value
        else:
            numbers[f.name] = value
    return {
        "kind": "function",
        "of": f"{kind.__module__}:{kind.__qualname__}",
        "derivative": derivative is not None,
        "values": numbers,
    }


def _decode_function(
    described: Description, name: str, arrays: Mapping[str, Array]
) -> FromFunction:
    module, _, qualname = described["of"].partition(":")
    if module.split(".")[0] != PACKAGE:
        raise UnstorablePathError(f"refusing to import {module!r}, which is not of this package")
    kind: Callable[..., Any] = getattr(import_module(module), qualname)
    if not hasattr(kind, "__dataclass_fields__"):
        raise UnstorablePathError(f"{described['of']!r} is not a function object of this package")
    function = _rebuilt(kind, name, arrays, described["values"])
    return FromFunction(function, function.derivative if described["derivative"] else None)


def _rebuilt(
    kind: Callable[..., Any], name: str, arrays: Mapping[str, Array], numbers: Mapping[str, float]
) -> Any:
    parts = {key.removeprefix(f"{name}."): value for key, value in arrays.items()}
    return kind(**parts, **numbers)
