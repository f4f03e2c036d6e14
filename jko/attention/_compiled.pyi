from numpy import float64
from numpy.typing import NDArray

Array = NDArray[float64]

def row_sums(
    at: Array,
    matrices: Array,
    points: Array,
    payload: Array,
    total: Array,
    heads: int,
    targets: int,
    dim: int,
    columns: int,
) -> None: ...
def symmetric_sums(
    at: Array,
    matrices: Array,
    points: Array,
    payload: Array,
    total: Array,
    heads: int,
    targets: int,
    dim: int,
    columns: int,
    part: int,
    parts: int,
) -> None: ...
def fourier_factors(points: Array, dim: int, degree: int, *factors: Array) -> None: ...
def fourier_values(
    points: Array,
    total: Array,
    dim: int,
    degree: int,
    heads: int,
    columns: int,
    start: int,
    stop: int,
    *groups: Array | int,
) -> None: ...
def supports(dim: int, columns: int) -> bool: ...
def instruction_sets() -> list[str]: ...
def instruction_set() -> str: ...
def use(name: str) -> None: ...
