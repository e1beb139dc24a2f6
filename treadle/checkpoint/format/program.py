"""A model as a program that runs without its Python code: torch's exported program, or ONNX."""

import inspect
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from treadle.errors import CheckpointError, ConfigError, importing
from treadle.files.atomic_io import replace_file

TOLERANCE = 1e-5
"""How far the outputs of the program may be from those of the model, beside or relative to them."""
Outputs = dict[str, Tensor]
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def export_program(model: nn.Module, inputs: Mapping[str, Tensor], path: Path) -> None:
    """Write a model as a program that `torch.export.load(path).module()` runs.

    Args:
        model: The model, on the CPU.
        inputs: An example of its inputs, by name. Sizes that the model does not fix may be others in the program.
        path: The file, whose name ends in .pt2.

    Raises:
        ConfigError: Torch cannot export the model, or what comes of it computes something else.
        CheckpointError: The file cannot be written.
    """
    _require_suffix(path, ".pt2")
    with _explaining("torch.export", model):
        program = _exported(model, inputs)
        run = program.module()
        _compare("torch.export", _plain_outputs(model), lambda given: run(**given), inputs)
    _write(path, lambda part: torch.export.save(program, part))


def export_onnx(model: nn.Module, inputs: Mapping[str, Tensor], path: Path) -> None:
    """Write a model as an ONNX file.

    Args:
        model: The model, on the CPU.
        inputs: An example of its inputs, by name. Sizes that the model does not fix may be others in the file.
        path: The file, whose name ends in .onnx.

    Raises:
        ConfigError: Torch cannot export the model, or what comes of it computes something else.
        CheckpointError: The file cannot be written.
        MissingDependencyError: A package of the extra `onnx` is not installed.
    """
    _require_suffix(path, ".onnx")
    with importing("onnx, onnxscript and onnxruntime", extra="onnx", user="an ONNX file"):
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    plain = _plain_outputs(model)
    with _explaining("ONNX", model):
        names = list(plain(inputs))
        content = _onnx_of(_exported(model, inputs), names)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        taken = {one.name for one in session.get_inputs()}

        def run(given: Mapping[str, Tensor]) -> Outputs:
            arrays = {name: tensor.numpy() for name, tensor in given.items() if name in taken}
            found = session.run(names, arrays)
            return {name: torch.from_numpy(array) for name, array in zip(names, found, strict=True)}

        _compare("ONNX", plain, run, inputs)
    _write(path, lambda part: Path(part).write_bytes(content))


def _onnx_of(program: torch.export.ExportedProgram, outputs: list[str]) -> bytes:
    log = logging.getLogger("torch.onnx")
    level = log.level
    # It tells of every package for which it could write operators and which is not there.
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            written = torch.onnx.export(program, dynamo=True, output_names=outputs, verbose=False)
    finally:
        log.setLevel(level)
    assert written is not None
    return bytes(written.model_proto.SerializeToString())


class _Named(nn.Module):
    """A model with inputs and outputs by name; of the outputs those that are tensors.

    Args:
        model: The model.
        inputs: The names of the inputs that the program is to have.
    """

    def __init__(self, model: nn.Module, inputs: Iterable[str]) -> None:
        super().__init__()
        self.model = model

        def forward(**inputs: Tensor) -> Outputs:
            return self._named(self.model(**inputs))

        # Torch reads there what the program takes; what the model could take besides is no part of it.
        kind = inspect.Parameter.KEYWORD_ONLY
        forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in inputs])  # type: ignore[attr-defined]
        self.forward = forward

    @staticmethod
    def _named(outputs: Any) -> Outputs:
        if isinstance(outputs, Tensor):
            return {"output": outputs}
        if isinstance(outputs, Mapping):
            return {name: value for name, value in outputs.items() if isinstance(value, Tensor)}
        if isinstance(outputs, (list, tuple)):
            return {f"output_{place}": value for place, value in enumerate(outputs) if isinstance(value, Tensor)}
        raise ConfigError(f"the model returns a {type(outputs).__name__}, and no tensors that a program could return")


def _plain_outputs(model: nn.Module) -> Callable[[Mapping[str, Tensor]], Outputs]:
    def run(given: Mapping[str, Tensor]) -> Outputs:
        with torch.no_grad():
            found: Outputs = _Named(model, given)(**given)
        return found

    return run


def _exported(model: nn.Module, inputs: Mapping[str, Tensor]) -> torch.export.ExportedProgram:
    if not inputs:
        raise ConfigError("a program is made by running the model on an example, and there are no inputs in it")
    config: Any = getattr(model, "config", None)
    if hasattr(config, "use_cache"):
        # What it keeps for the next token is nothing that a program returns.
        config.use_cache = False
    # An example of one sample would be taken for a program of one.
    wide = {name: _repeated(tensor) for name, tensor in inputs.items()}
    any_size = {name: dict.fromkeys(range(tensor.dim()), torch.export.Dim.AUTO) for name, tensor in wide.items()}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(_Named(model.eval(), wide), (), wide, dynamic_shapes=any_size, strict=False)


def _repeated(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, tensor]) if tensor.dim() and tensor.shape[0] == 1 else tensor


def _compare(
    name: str,
    plain: Callable[[Mapping[str, Tensor]], Outputs],
    run: Callable[[Mapping[str, Tensor]], Outputs],
    inputs: Mapping[str, Tensor],
) -> None:
    """Compare a program with the model, on the example and on three times as many samples.

    Raises:
        ConfigError: They differ.
    """
    for given in (dict(inputs), {key: torch.cat([tensor] * 3) for key, tensor in inputs.items()}):
        wanted, found = plain(given), run(given)
        for output, tensor in wanted.items():
            if not torch.allclose(found[output].to(tensor.dtype), tensor, rtol=TOLERANCE, atol=TOLERANCE):
                apart = float((found[output].double() - tensor.double()).abs().max())
                raise ConfigError(
                    f"{name} of this model computes something else: {output} is off by {apart:.1e}, and no more than "
                    f"{TOLERANCE:.0e} is taken; nothing was written"
                )


@contextmanager
def _explaining(name: str, model: nn.Module) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # torch's exporters, given what they do not know, fail by whatever comes first
        cause = error.__cause__ or error
        lines = [line.strip() for line in _COLOURS.sub("", str(cause)).splitlines()]
        reason = next(filter(None, lines), type(cause).__name__)
        raise ConfigError(
            f"{name} cannot take a {type(model).__name__}: {reason}; export its weights with --format torch"
        ) from error


def _require_suffix(path: Path, suffix: str) -> None:
    if path.suffix != suffix:
        raise ConfigError(f"{path}: the name of such a file ends in {suffix}")


def _write(path: Path, write: Callable[[str], object]) -> None:
    try:
        replace_file(path, lambda part: write(str(part)))
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error}") from error
