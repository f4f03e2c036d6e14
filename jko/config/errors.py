"""Validation errors as a user reads them: table, key, value, and what would be right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

__all__ = ["ConfigError", "describe_errors"]

Location = tuple[int | str, ...]
Kind = type[BaseModel]


class ConfigError(ValueError):
    """A configuration that cannot be run."""


def describe_errors(
    problem: ValidationError, data: Mapping[str, Any], root: Kind, name: str
) -> str:
    """All errors of ``problem`` in one message; ``data`` is what was validated against ``root``."""
    lines = [_describe(error, data, root) for error in problem.errors()]
    if len(lines) == 1:
        return f"{name}: {lines[0]}"
    return f"{name} has {len(lines)} errors:" + "".join(f"\n  {line}" for line in lines)


def _describe(error: Any, data: Mapping[str, Any], root: Kind) -> str:
    location: Location = error["loc"]
    keys = _keys(location, data)
    if error["type"] == "extra_forbidden":
        return _unknown(keys, location, root)
    where = _dotted(keys)
    if error["type"] == "missing" and len(keys) == 1:
        return f"missing table [{where}]"
    if error["type"] == "missing":
        return f"missing key {keys[-1]!r} in [{_dotted(keys[:-1])}]"
    if error["type"] == "union_tag_not_found":
        tag = error["ctx"]["discriminator"].strip("'")
        return f"missing key {tag!r} in [{where}], one of {_tags(root, location, tag)}"
    if error["type"] == "union_tag_invalid":
        tag = error["ctx"]["discriminator"].strip("'")
        value = error["ctx"]["tag"]
        nearest = _nearest(str(value), _alternatives(root, location, tag))
        allowed = _tags(root, location, tag)
        return f"{where}.{tag} must be one of {allowed}, got {value!r}{nearest}"
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return f"{where} must be a table, got {error['input']!r}"
    if error["type"] in ("too_short", "too_long"):
        least = error["type"] == "too_short"
        count = error["ctx"]["min_length" if least else "max_length"]
        bound = f"at {'least' if least else 'most'} {count} item{'s' if count != 1 else ''}"
        return f"{where} must have {bound}, got {error['input']!r}"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if error["type"] == "value_error":
        return f"{where}: {message}"
    return f"{where} must be {message}, got {error['input']!r}"


def _keys(location: Location, data: Any) -> Location:
    """The location without the tags of unions, which are no keys of the file."""
    keys: list[int | str] = []
    here: Any = data
    for place, part in enumerate(location):
        if isinstance(here, list):
            here = dict(enumerate(here))
        if isinstance(here, dict) and part in here:
            keys.append(part)
            here = here[part]
        elif place == len(location) - 1 and not _is_tag(part, here):
            keys.append(part)
    return tuple(keys)


def _is_tag(part: int | str, here: Any) -> bool:
    return isinstance(here, dict) and part in here.values()


def _dotted(keys: Location) -> str:
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def _unknown(keys: Location, location: Location, root: Kind) -> str:
    key = str(keys[-1])
    kind = _kind_at(root, location[:-1])
    known = [] if kind is None else list(kind.model_fields)
    if len(keys) == 1:
        return f"unknown table [{key}]{_nearest(key, known) or _known(known)}"
    table = _dotted(keys[:-1])
    nearest = _siblings(key, location, root) or _nearest(key, known)
    if not nearest:
        others = [name for name, fields in _tables(root) if key in fields and name != table]
        nearest = f"; it belongs in [{others[0]}]" if others else _known(known)
    return f"unknown key {key!r} in [{table}]{nearest}"


def _siblings(key: str, location: Location, root: Kind) -> str:
    """The other shapes of the table that know the key."""
    kinds = _kinds_at(root, location[:-2])
    if len(kinds) < 2 or not any(_tagged(kind, location[-2]) for kind in kinds):
        return ""
    tags = [
        (name, str(get_args(field.annotation)[0]))
        for kind in kinds
        if key in kind.model_fields
        for name, field in kind.model_fields.items()
        if get_origin(field.annotation) is Literal and field.is_required()
    ]
    if not tags:
        return ""
    names = [repr(tag) for _, tag in tags]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
    return f"; it belongs to {tags[0][0]} = {listed}"


def _nearest(word: str, known: list[str]) -> str:
    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def _known(known: list[str]) -> str:
    return f"; known are {', '.join(known)}" if known else ""


def _members(annotation: Any) -> list[Kind]:
    """The tables that an annotation allows."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (None, list, Literal):
        return []
    return [kind for part in get_args(annotation) for kind in _members(part)]


def _tagged(kind: Kind, part: int | str) -> bool:
    return any(
        get_origin(field.annotation) is Literal and part in get_args(field.annotation)
        for field in kind.model_fields.values()
    )


def _kinds_at(root: Kind, location: Location) -> list[Kind]:
    """The tables that may stand at a location (tags of unions included)."""
    kinds = [root]
    for part in location:
        if len(kinds) > 1:
            kinds = [kind for kind in kinds if _tagged(kind, part)]
        elif kinds and part in kinds[0].model_fields:
            kinds = _members(kinds[0].model_fields[str(part)].annotation)
    return kinds


def _kind_at(root: Kind, location: Location) -> Kind | None:
    kinds = _kinds_at(root, location)
    return kinds[0] if len(kinds) == 1 else None


def _alternatives(root: Kind, location: Location, tag: str) -> list[str]:
    return [
        str(get_args(kind.model_fields[tag].annotation)[0]) for kind in _kinds_at(root, location)
    ]


def _tags(root: Kind, location: Location, tag: str) -> str:
    return ", ".join(repr(name) for name in _alternatives(root, location, tag))


def _tables(root: Kind) -> Iterator[tuple[str, set[str]]]:
    """Tables with one shape only, and their keys."""
    for name, field in root.model_fields.items():
        members = _members(field.annotation)
        yield name, {key for kind in members for key in kind.model_fields}
