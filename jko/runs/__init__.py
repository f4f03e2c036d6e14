"""Runs: minimizing movements, direct flows, curves, monitors, stores."""
