"""Memory of a step on tokens: estimated before it starts, refused where it cannot fit."""

from __future__ import annotations

import logging
import os

from .coupling import COUPLED_TOKENS

__all__ = [
    "MEMORY_PAIRS",
    "StepTooLargeError",
    "pass_order",
    "remembered_pairs",
    "require_memory",
    "step_bytes",
]

logger = logging.getLogger(__name__)

#: Pairs that L-BFGS remembers, and the bytes they may take.
MEMORY_PAIRS = 20
PAIR_BYTES = 512 * 2**20

#: Dimension up to which kernel passes of a step keep second moments, as a preconditioner.
BLOCK_DIMENSION = 8

#: Kernel passes whose results are alive at once: of the start, the iterate and a trial.
ALIVE = 3

#: Allowance for temporaries of blocks and of the allocator.
MARGIN = 1.15

#: Steps that need less than this are not announced.
ANNOUNCED = 256 * 2**20


class StepTooLargeError(MemoryError):
    """The arrays of a step, all linear in the number of tokens, would not fit in memory."""


def pass_order(dim: int) -> int:
    """Order of a step's kernel passes: second moments where they are kept."""
    return 2 if dim <= BLOCK_DIMENSION else 1


def remembered_pairs(n: int, dim: int) -> int:
    """Pairs that L-BFGS remembers: fewer than `MEMORY_PAIRS` from about 500 000 tokens on."""
    return max(2, min(MEMORY_PAIRS, PAIR_BYTES // (16 * n * dim)))


def step_bytes(n: int, dim: int, heads: int, nodes: int = 0) -> int:
    """Upper estimate of the memory of a step on ``n`` tokens, without a dense plan.

    Counts the results of the kernel passes that are alive at once (``H (2 + d + d (d + 1) / 2)``
    numbers a token, the last term up to d = 8), the pairs of L-BFGS, the preconditioner and the vectors
    of the method; a step that converges quickly takes about half.  Where the transport problem
    has to be solved its dense plan comes on top, see `jko.transport.plan.plan_bytes`.

    Parameters
    ----------
    n, dim, heads : int
        Tokens of positive weight, their dimension and the number of heads.
    nodes : int
        Quadrature nodes of the ground cost, 0 for ``"source"``.
    """
    second = dim * (dim + 1) // 2 if pass_order(dim) == 2 else 0
    block = dim**2 if pass_order(dim) == 2 else 0
    kernel_pass = 2 * dim + heads * (2 + dim + second)
    pairs = 2 * dim * remembered_pairs(n, dim)
    images = heads * second if n <= COUPLED_TOKENS else 0
    vectors = block + images + 10 * dim + 10
    along = nodes * (heads * (3 + 2 * dim) + 8 * dim)
    return int(8 * n * MARGIN * (ALIVE * kernel_pass + pairs + vectors + along))


def require_memory(n: int, dim: int, heads: int, nodes: int = 0) -> None:
    """Announce the estimate of a large step in the log, and raise where it cannot fit.

    Raises
    ------
    StepTooLargeError
        If `step_bytes` exceeds the physical memory, on systems that tell it.
    """
    needed = step_bytes(n, dim, heads, nodes)
    if needed < ANNOUNCED:
        return
    size = needed / 2**30
    logger.info(
        "a step on %d tokens (d = %d, %d heads) takes up to %.1f GiB", n, dim, heads, size
    )
    available = physical_memory()
    if available is not None and needed > available:
        raise StepTooLargeError(
            f"a step on {n} tokens of dimension {dim} with {heads} heads needs about {size:.1f} "
            f"GiB, more than the {available / 2**30:.1f} GiB of this computer; use fewer tokens"
        )


def physical_memory() -> int | None:
    """Bytes of physical memory; None where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
