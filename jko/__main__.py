"""``python -m jko``: the command line."""

from .cli import main

main()
