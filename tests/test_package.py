"""The package as a whole: light import, documentation, version, data files."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import pkgutil
import subprocess
import sys
from importlib.resources import files

import jko
import pytest

HEAVY = (
    "matplotlib",
    "plotly",
    "cvxpy",
    "pandas",
    "xarray",
    "zarr",
    "ot",
    "torch",
    "typer",
    "rich",
)


def public_modules():
    found = pkgutil.walk_packages(jko.__path__, "jko.")
    return ["jko", *(m.name for m in found if "._" not in m.name and m.name != "jko.__main__")]


def test_import_is_light():
    code = f"import sys, jko\nprint([name for name in {HEAVY!r} if name in sys.modules])\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""


def test_every_public_name_exists():
    assert len(set(jko.__all__)) == len(jko.__all__)
    missing = [name for name in jko.__all__ if not hasattr(jko, name)]
    assert missing == []


@pytest.mark.parametrize("name", public_modules())
def test_everything_public_is_documented(name):
    module = importlib.import_module(name)
    assert inspect.getdoc(module), f"{name} has no docstring"
    for public in getattr(module, "__all__", ()):
        value = getattr(module, public)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        assert inspect.getdoc(value), f"{name}.{public} has no docstring"
        if inspect.isclass(value):
            for attribute, member in vars(value).items():
                if attribute.startswith("_") or not callable(getattr(value, attribute)):
                    continue
                where = f"{name}.{public}.{attribute}"
                assert inspect.getdoc(getattr(value, attribute)), f"{where} has no docstring"
                assert member is not None


def test_version():
    assert jko.__version__ == importlib.metadata.version("jko")


def test_package_carries_its_types_and_its_data():
    root = files("jko")
    assert root.joinpath("py.typed").is_file()
    assert root.joinpath("data", "sphere_one_head.npz").is_file()
