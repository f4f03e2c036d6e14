"""Proximal steps: problem, solvers, certificates."""
