r"""
An energy balance that closes, and one that cannot
==================================================

A minimizing movement obeys an exact identity at *any* step size at which every minimiser is the
global one. Summed over its steps,

.. math:: E(\mu_K) - E(\mu_0) = \int \partial_t E - \sum_k \frac{W^2}{2\tau}
          - \sum_k \int_0^\tau \frac{W^2(\mu_k, \tilde\mu_r)}{2 r^2}\,dr,

with De Giorgi's interpolation :math:`\tilde\mu_r` in the last term. The softmax flow of several
heads leaves a residual that no refinement removes: its defect.
"""

from jko import (
    AttentionModel,
    Heads,
    TokenCloud,
    energy_balance,
    minimizing_movement,
    particle_flow,
    weights,
)
from jko.plotting import plot_balance

cloud = TokenCloud.octahedral(20, noise=0.2, rng=0)
model = AttentionModel(weights.Oscillating(Heads.gaussian(3, rng=1)))
movement = minimizing_movement(model, cloud, (0, 2), step=0.2, certify="none")

# %%
# Ten long steps. The residual, and with it the closure, is rounding. (Far longer ones, at which a
# token should split, leave a residual: their certificates are ``failed``.)

balance = energy_balance(movement)
print(balance)
figure = plot_balance(balance)
figure.savefig("plot_07_energy_balance_movement.png", dpi=150)

# %%
# The softmax flow from the same cloud, integrated to 1e-10. Its *residual* stays; subtracting
# the defect closes the balance, so the residual is no numerical error.

softmax = energy_balance(particle_flow(model, cloud, (0, 2), velocity="softmax", rtol=1e-10))
print(softmax)
figure = plot_balance(softmax)
figure.savefig("plot_07_energy_balance_softmax.png", dpi=150)
