"""Resolve the short names that docstrings use.

A docstring says `energy_balance` or `plan_gap`; the object is ``jko.energy_balance`` or an
attribute of the class at hand.  A name that ends exactly one documented object is a link to it.
A name that the package itself defines but the reference does not list (a helper, a constant, a
field of a dataclass, a parameter), or a name of another library, stays as code.  Anything else is
left to Sphinx, which reports it.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any

import jko
from docutils import nodes
from sphinx.util.nodes import make_refnode

#: Libraries whose names docstrings mention; their pages are not linked, the build is offline.
OTHERS = (
    "cvxpy", "matplotlib", "numpy", "ot", "pathlib", "safetensors", "scipy", "torch", "typing", "xarray",
)


@cache
def known_words() -> frozenset[str]:
    """Names of modules, objects, fields and parameters of the package."""
    words: set[str] = {"jko"}
    for found in pkgutil.walk_packages(jko.__path__, "jko."):
        if found.name.endswith("__main__"):
            continue
        words.update(found.name.split("."))
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            if name.isupper() or str(getattr(value, "__module__", "")).startswith("jko"):
                words.add(name)
                words.update(getattr(value, "__annotations__", {}))
                words.update(getattr(getattr(value, "__init__", None), "__annotations__", {}))
                if isinstance(value, type):
                    words.update(vars(value))
    return frozenset(words)


def resolve(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """The object whose full name ends in the target, if there is one."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    domain = env.get_domain("py")
    candidates = [name for name in domain.objects if name.endswith("." + target)]
    # jko.energy_balance before jko.diagnostics.balance.energy_balance
    candidates.sort(key=lambda name: name.count("."))
    if candidates and (
        len(candidates) == 1 or candidates[0].count(".") < candidates[1].count(".")
    ):
        entry = domain.objects[candidates[0]]
        source = node.get("refdoc", env.docname)
        return make_refnode(app.builder, source, entry.docname, entry.node_id, contnode)
    parts = target.split(".")
    if parts[0] in OTHERS or all(part in known_words() for part in parts):
        return nodes.literal(target, target)
    return None


def setup(app: Any) -> dict[str, bool]:
    """Register the resolver."""
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
