"""The tables of a configuration, and what each of them builds.

Default seeds differ from table to table: equal ones would draw the same numbers for the tokens,
the heads and their path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from .._validation import time_span
from ..attention import weights as paths
from ..attention.heads import Heads
from ..measures import TokenCloud
from ..schemes import JKO, Midpoint, make_scheme
from ..schemes.base import require_labelled
from ..steps.proximal import TOLERANCE, StepOptions
from .files import make_heads, naming, read_arrays

__all__ = ["Flows", "Output", "Run", "RunConfig", "Table"]

Array = NDArray[np.float64]


class Table(BaseModel):
    """A table of the file: no unknown keys, no silent conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class UniformCloud(Table):
    """Independent uniform tokens."""

    constructor: Literal["uniform"]
    n: PositiveInt
    dim: int = Field(3, ge=2)
    seed: NonNegativeInt = 0

    def build(self, directory: Path) -> TokenCloud:
        """The cloud."""
        return TokenCloud.uniform(self.n, self.dim, self.seed)


class VonMisesFisherCloud(Table):
    """Independent tokens around one direction."""

    constructor: Literal["von_mises_fisher"]
    n: PositiveInt
    mean: list[float] = Field(min_length=2)
    concentration: PositiveFloat
    seed: NonNegativeInt = 0

    def build(self, directory: Path) -> TokenCloud:
        """The cloud."""
        return TokenCloud.von_mises_fisher(self.n, self.mean, self.concentration, self.seed)


class ClusteredCloud(Table):
    """Tokens near given centers."""

    constructor: Literal["clustered"]
    n: PositiveInt
    centers: list[list[float]] = Field(min_length=1)
    noise: NonNegativeFloat = 0.05
    seed: NonNegativeInt = 0

    def build(self, directory: Path) -> TokenCloud:
        """The cloud."""
        return TokenCloud.clustered(self.n, self.centers, self.noise, self.seed)


class OctahedralCloud(Table):
    """Tokens near the octahedron's vertices."""

    constructor: Literal["octahedral"]
    n: PositiveInt
    noise: NonNegativeFloat = 0.05
    seed: NonNegativeInt = 0

    def build(self, directory: Path) -> TokenCloud:
        """The cloud."""
        return TokenCloud.octahedral(self.n, self.noise, self.seed)


class CrossPolytopeCloud(Table):
    """Tokens near the vertices of the cross-polytope."""

    constructor: Literal["cross_polytope"]
    n: PositiveInt
    dim: int = Field(3, ge=2)
    noise: NonNegativeFloat = 0.05
    seed: NonNegativeInt = 0

    def build(self, directory: Path) -> TokenCloud:
        """The cloud."""
        return TokenCloud.cross_polytope(self.n, self.dim, self.noise, self.seed)


class PentagonalCloud(Table):
    """Tokens near five equispaced points of the circle."""

    constructor: Literal["pentagonal"]
    n: PositiveInt
    noise: NonNegativeFloat = 0.05
    seed: NonNegativeInt = 0

    def build(self, directory: Path) -> TokenCloud:
        """The cloud."""
        return TokenCloud.pentagonal(self.n, self.noise, self.seed)


class FileCloud(Table):
    """Tokens from a ``.npy``, ``.npz`` or ``.csv`` file."""

    constructor: Literal["file"]
    file: str
    normalize: bool = False

    def build(self, directory: Path) -> TokenCloud:
        """The cloud."""
        with naming(self.file):
            return TokenCloud.from_file(directory / self.file, self.normalize)


Cloud = Annotated[
    UniformCloud
    | VonMisesFisherCloud
    | ClusteredCloud
    | OctahedralCloud
    | CrossPolytopeCloud
    | PentagonalCloud
    | FileCloud,
    Field(discriminator="constructor"),
]


class GaussianHeads(Table):
    """The article's ``Z + Z^T``, Z standard normal."""

    kind: Literal["gaussian"]
    count: PositiveInt
    dim: int | None = Field(None, ge=2)
    seed: NonNegativeInt = 1

    def build(self, directory: Path, dim: int) -> Heads:
        """The heads; their dimension is the cloud's unless it is given."""
        return Heads.gaussian(self.count, self.dim or dim, self.seed)


class MatrixHeads(Table):
    """Matrices written in the file."""

    kind: Literal["matrices"]
    matrices: list[list[list[float]]] = Field(min_length=1)
    weights: list[float] | None = None
    symmetrize: bool = False

    def build(self, directory: Path, dim: int) -> Heads:
        """The heads."""
        return make_heads(self.matrices, self.weights, self.symmetrize)


class FileHeads(Table):
    """Matrices from an ``.npz`` file with ``matrices`` and, perhaps, ``weights``, or a ``.npy``."""

    kind: Literal["file"]
    file: str
    symmetrize: bool = False

    def build(self, directory: Path, dim: int) -> Heads:
        """The heads."""
        with naming(self.file):
            return self._read(directory)

    def _read(self, directory: Path) -> Heads:
        arrays = read_arrays(directory / self.file)
        return make_heads(arrays["matrices"], arrays.get("weights"), self.symmetrize)


HeadSource = Annotated[GaussianHeads | MatrixHeads | FileHeads, Field(discriminator="kind")]


class WeightsTable(Table):
    """What all weight paths share."""

    sign: Literal[1, -1] = 1
    scale: float = 1.0
    evaluator: str = "auto"


class HeadedPath(WeightsTable):
    """A path that starts from heads."""

    heads: HeadSource

    def heads0(self, directory: Path, dim: int) -> Heads:
        """The initial heads, scaled."""
        heads = self.heads.build(directory, dim)
        return heads if self.scale == 1 else Heads(self.scale * heads.matrices, heads.weights)


class FrozenPath(HeadedPath):
    """Heads that do not change."""

    path: Literal["frozen"]

    def build(self, directory: Path, dim: int, end: float) -> paths.WeightPath:
        """The path."""
        return paths.Frozen(self.heads0(directory, dim))


class OscillatingPath(HeadedPath):
    """The article's oscillating heads."""

    path: Literal["oscillating"]

    def build(self, directory: Path, dim: int, end: float) -> paths.WeightPath:
        """The path."""
        return paths.Oscillating(self.heads0(directory, dim))


class OrnsteinUhlenbeckPath(HeadedPath):
    """The article's Ornstein-Uhlenbeck heads."""

    path: Literal["ornstein_uhlenbeck"]
    variance: PositiveFloat = 2.0
    base_step: PositiveFloat = 0.005
    seed: NonNegativeInt = 2

    def build(self, directory: Path, dim: int, end: float) -> paths.WeightPath:
        """The path."""
        return paths.OrnsteinUhlenbeck(
            self.heads0(directory, dim),
            horizon=max(end, self.base_step),
            variance=self.variance,
            base_step=self.base_step,
            rng=self.seed,
        )


class InterpolatedPath(WeightsTable):
    """Matrices at layer times, from an ``.npz`` with ``times``, ``matrices``, maybe ``weights``."""

    path: Literal["interpolated"]
    file: str
    symmetrize: bool = False

    def build(self, directory: Path, dim: int, end: float) -> paths.WeightPath:
        """The path."""
        with naming(self.file):
            return self._read(directory)

    def _read(self, directory: Path) -> paths.WeightPath:
        arrays = read_arrays(directory / self.file)
        if "times" not in arrays:
            raise ValueError(f"{self.file} must hold an array 'times', got {sorted(arrays)}")
        matrices = self.scale * np.asarray(arrays["matrices"], dtype=float)
        if self.symmetrize:
            matrices = (matrices + np.swapaxes(matrices, -1, -2)) / 2
        return paths.Interpolated(arrays["times"], matrices, arrays.get("weights"))


Weights = Annotated[
    FrozenPath | OscillatingPath | OrnsteinUhlenbeckPath | InterpolatedPath,
    Field(discriminator="path"),
]


class Run(Table):
    """The minimizing movement."""

    horizon: PositiveFloat | None = None
    t_span: list[float] | None = Field(None, min_length=2, max_length=2)
    step: PositiveFloat | None = None
    rtol: PositiveFloat | None = None
    scheme: str = "jko"
    cost: str = "source"
    solver: str = "particles"
    tolerance: PositiveFloat = TOLERANCE
    max_evaluations: PositiveInt = 1000
    certify: str = "full"

    @field_validator("scheme")
    @classmethod
    def _known_scheme(cls, value: str) -> str:
        make_scheme(value)
        return value

    @field_validator("cost", "solver", "certify")
    @classmethod
    def _known_option(cls, value: str, info: Any) -> str:
        options: dict[str, Any] = {info.field_name: value}
        StepOptions(**options)
        return value

    @model_validator(mode="after")
    def _one_span(self) -> Run:
        if (self.horizon is None) == (self.t_span is None):
            raise ValueError("give either horizon = T or t_span = [start, end]")
        time_span(self.span)
        return self

    @model_validator(mode="after")
    def _one_size(self) -> Run:
        if (self.step is None) == (self.rtol is None):
            raise ValueError("give either step, or rtol for steps that are chosen by their error")
        scheme = make_scheme(self.scheme)
        if self.rtol is not None and scheme not in (JKO(), Midpoint()):
            raise ValueError(f"rtol goes with the schemes jko and midpoint, not {self.scheme!r}")
        if not isinstance(scheme, JKO):
            require_labelled(StepOptions(cost=self.cost, solver=self.solver), self.scheme)
        return self

    @property
    def span(self) -> tuple[float, float]:
        """Start and end time."""
        if self.t_span is not None:
            return self.t_span[0], self.t_span[1]
        return 0.0, float(self.horizon or 0.0)


class Flows(Table):
    """The direct flows that the movement is compared with."""

    velocities: list[Literal["gradient", "softmax"]] = ["gradient", "softmax"]
    method: Literal[
        "auto", "euler", "heun", "rk4", "DOP853", "RK45", "RK23", "Radau", "BDF", "LSODA"
    ] = "auto"
    rtol: PositiveFloat = 1e-9
    step: PositiveFloat | None = None

    @model_validator(mode="after")
    def _step_fits_method(self) -> Flows:
        fixed = self.method in ("euler", "heun", "rk4")
        if fixed and self.step is None:
            raise ValueError(f"method {self.method!r} needs a step")
        if self.step is not None and not fixed:
            raise ValueError(f"step goes with the methods euler, heun and rk4, not {self.method!r}")
        return self


class Converge(Table):
    """The study of `jko converge`; by default a tenth of the span, halved four times."""

    steps: list[PositiveFloat] | None = Field(default=None, min_length=2)
    schemes: list[str] = ["jko", "midpoint", "bdf2", "ve2"]
    reference: Literal["gradient", "softmax", "fine"] = "gradient"
    certify: Literal["full", "local", "none"] = "local"

    @field_validator("schemes")
    @classmethod
    def _known_schemes(cls, value: list[str]) -> list[str]:
        for name in value:
            make_scheme(name)
        return value


class Output(Table):
    """What the run leaves."""

    report: bool = True
    write_every: NonNegativeFloat = 1.0


class RunConfig(Table):
    """A whole run."""

    cloud: Cloud
    weights: Weights
    run: Run
    flows: Flows = Flows()
    output: Output = Output()
    converge: Converge = Converge()
