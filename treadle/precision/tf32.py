"""How products of fp32 numbers are rounded, in TF32 for instance: a setting that ends with the run."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self, get_args

import torch

from treadle.errors import ConfigError, did_you_mean

# The switch that makes torch give the same bits each time, or fail


WORKSPACES = (":4096:8", ":16:8")


class Deterministic:
    """While entered, torch uses deterministic algorithms only; what it was set to before comes back afterwards.

    Raises:
        ConfigError: On CUDA, `CUBLAS_WORKSPACE_CONFIG` is not set as torch needs it before the process starts.
    """

    def __init__(self, device: torch.device) -> None:
        workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
        if device.type == "cuda" and workspace not in WORKSPACES:
            raise ConfigError(
                f"deterministic=True on CUDA needs CUBLAS_WORKSPACE_CONFIG to be one of {WORKSPACES} "
                f"before the process starts; it is {workspace!r}"
            )

    def __enter__(self) -> Self:
        self._algorithms = torch.are_deterministic_algorithms_enabled()
        self._warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        self._benchmark = torch.backends.cudnn.benchmark
        torch.use_deterministic_algorithms(True)
        # It picks an algorithm by timing, which may come out otherwise in the next run.
        torch.backends.cudnn.benchmark = False
        return self

    def __exit__(self, *exception: Any) -> None:
        torch.use_deterministic_algorithms(self._algorithms, warn_only=self._warn_only)
        torch.backends.cudnn.benchmark = self._benchmark


_backends: Any = torch.backends
MatmulPrecision = Literal["highest", "high", "medium"]
ConvolutionPrecision = Literal["highest", "high"]
MATMULS: tuple[MatmulPrecision, ...] = get_args(MatmulPrecision)
CONVOLUTIONS: tuple[ConvolutionPrecision, ...] = get_args(ConvolutionPrecision)


class SinglePrecision:
    """While entered, products of fp32 matrices and convolutions are rounded as asked; afterwards as before.

    Args:
        matmul: "highest" computes in fp32; "high" may use TF32, or sums of bf16 products, with ten bits at least;
            "medium" may use bf16. None leaves torch as it is.
        convolution: "highest" computes convolutions and recurrent layers in fp32; "high" may use TF32, which is
            what torch does by itself. None leaves torch as it is.

    Raises:
        ConfigError: One of them is unknown.
    """

    def __init__(self, matmul: str | None = None, convolution: str | None = None) -> None:
        _check("matmul_precision", matmul, MATMULS)
        _check("convolution_precision", convolution, CONVOLUTIONS)
        self.matmul, self.convolution = matmul, convolution
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        """Round as asked."""
        with _without_advice():
            # A stack: an evaluation within a run enters the same object again.
            self._before.append((_matmul_state(), _convolution_state()))
            if self.matmul is not None:
                torch.set_float32_matmul_precision(self.matmul)
            if self.convolution is not None:
                _backends.cudnn.allow_tf32 = self.convolution == "high"
        return self

    def __exit__(self, *exception: Any) -> None:
        """Round as before."""
        matmul, convolution = self._before.pop()
        with _without_advice():
            if self.matmul is not None:
                _set_matmul_state(*matmul)
            if self.convolution is not None:
                _set_convolution_state(*convolution)


def _check(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        near = did_you_mean(str(value), choices) or f"; use one of {choices}, or None to leave it to torch"
        raise ConfigError(f"{name}={value!r} is unknown{near}")


@contextmanager
def _without_advice() -> Iterator[None]:
    """Keep torch from recommending its newer settings, which not every version that we support has in full."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Please use the new API settings", category=UserWarning)
        yield


def rounding() -> dict[str, str]:
    """Return how products of fp32 numbers are rounded now, by the names that torch has for it.

    >>> sorted(rounding())
    ['convolution', 'matmul']
    """
    found = {"matmul": _backends.cuda.matmul.fp32_precision, "convolution": _backends.cudnn.conv.fp32_precision}
    return {name: "ieee" if value == "none" else str(value) for name, value in found.items()}


MatmulState = tuple[str | None, str, str]


def _matmul_state() -> MatmulState:
    """Return what was set, in both of torch's ways to set it; the older one fails if the newer one was used."""
    try:
        named: str | None = torch.get_float32_matmul_precision()
    except RuntimeError:
        named = None
    return named, _backends.cuda.matmul.fp32_precision, _backends.mkldnn.matmul.fp32_precision


def _set_matmul_state(named: str | None, cuda: str, mkldnn: str) -> None:
    if named is not None:
        torch.set_float32_matmul_precision(named)
    if _backends.cuda.matmul.fp32_precision != cuda:
        _backends.cuda.matmul.fp32_precision = cuda
    if _backends.mkldnn.matmul.fp32_precision != mkldnn:
        _backends.mkldnn.matmul.fp32_precision = mkldnn


def _convolution_state() -> tuple[str, str]:
    return _backends.cudnn.conv.fp32_precision, _backends.cudnn.rnn.fp32_precision


def _set_convolution_state(convolution: str, recurrent: str) -> None:
    if convolution == recurrent:
        _backends.cudnn.allow_tf32 = convolution == "tf32"
    if _convolution_state() != (convolution, recurrent):
        _backends.cudnn.conv.fp32_precision = convolution
        _backends.cudnn.rnn.fp32_precision = recurrent
