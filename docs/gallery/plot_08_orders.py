r"""
Orders of the schemes
=====================

The error of a scheme against the gradient flow, for steps halved three times. JKO is of order
one, midpoint, BDF2 and VE2 of order two (BDF2 comes to it from below); a second-order scheme
buys precision with fewer kernel passes.
"""

from jko import convergence_study
from jko.plotting.convergence import plot_orders
from jko.problems import reference_case
from matplotlib.ticker import NullFormatter

# %%
# A small problem with a known answer: two heads that oscillate, on the circle.

problem = reference_case("circle_two_heads")
span = (0.0, 0.5)
steps = [span[1] / n for n in (4, 8, 16, 32)]
tables = [
    convergence_study(problem.model, problem.cloud, span, steps, scheme=scheme, certify="none",
                      tolerance=1e-12)
    for scheme in ("jko", "midpoint", "bdf2", "ve2")
]
for table in tables:
    low, high = table.order_interval
    last = table.pairwise_orders[-1]
    print(f"{table.scheme:<9} order {table.order:.2f}, 95 % interval {low:.2f} .. {high:.2f}, "
          f"between the last two steps {last:.2f}")

# %%
# The lines of midpoint and VE2 lie on each other at left; VE2 pays three minimisations a step.

figure = plot_orders(tables)
figure.axes[1].xaxis.set_minor_formatter(NullFormatter())
figure.savefig("plot_08_orders.png", dpi=150)
