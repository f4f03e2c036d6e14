"""Ground costs, optimal plans and distances."""
