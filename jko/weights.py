"""Weight paths, for import as ``jko.weights``: see `jko.attention.weights`."""

from .attention.weights import *  # noqa: F403
from .attention.weights import __all__ as __all__
