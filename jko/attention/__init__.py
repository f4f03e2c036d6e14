"""Multi-head attention: heads, weight paths, kernel sums, energy and mobility."""
