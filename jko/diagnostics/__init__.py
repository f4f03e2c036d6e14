"""What curves say: balances, convergence, metric speed."""
