"""A model as a program of its own: what comes of it is compared with the model, or refused with the reason."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.cli.conftest import Treadle
from tests.hf.models import build
from tests.hf.test_export import base, lora, refused, train
from treadle import Trainer
from treadle.checkpoint.format.program import export_onnx, export_program
from treadle.errors import ConfigError

IDS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 3], [5, 5, 5, 5, 5]])


def run_onnx(file: Path, **inputs: Tensor) -> Tensor:
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["logits"], {name: tensor.numpy() for name, tensor in inputs.items()})[0])


@pytest.mark.slow
def test_a_run_is_exported_as_programs_that_compute_what_its_model_does(tmp_path: Path, treadle: Treadle) -> None:
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    model = train(lora(base()), tmp_path / "run").model.eval()
    inputs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    wanted = model(**inputs).logits.detach()
    told = treadle("export", "run", "--format", "onnx", "--merge").stdout
    assert told == "LlamaForCausalLM written to model.onnx, and compared with it\n"
    torch.testing.assert_close(run_onnx(Path("model.onnx"), **inputs), wanted, rtol=1e-5, atol=1e-5)
    treadle("export", "run", "--format", "torch.export")
    found = torch.export.load("model.pt2").module()(**inputs)["logits"]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_run_of_a_config_is_exported_with_an_example(project: Path, treadle: Treadle) -> None:
    treadle("train", "configs/small.py")
    told = refused(treadle, "runs/small", "-f", "torch.export")
    assert "a Network is exported by running it on an example; pass --example with a file of its inputs" in told
    inputs = {"points": torch.randn(4, 2), "labels": torch.zeros(4).long()}
    save_file(inputs, "example.safetensors")
    treadle("export", "runs/small", "-f", "torch.export", "--example", "example.safetensors", "-o", "net.pt2")
    found = torch.export.load("net.pt2").module()(**inputs)["prediction_scores"]
    assert found.shape == (4, 2)


class Loud(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if bool(x.sum() > 0) else x


class Drawn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class Silent(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return None


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (
            Loud(),
            r"torch.export cannot take a Loud: Could not guard on data-dependent.*export its weights with --format",
        ),
        (Drawn(), "torch.export of this model computes something else: output is off by .*; nothing was written"),
        (Silent(), "the model returns a NoneType, and no tensors that a program could return"),
    ],
)
def test_what_cannot_be_a_program_is_refused_with_the_reason(model: nn.Module, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        export_program(model, {"x": torch.ones(2, 3)}, tmp_path / "x.pt2")
    assert not list(tmp_path.iterdir())


def test_names_and_examples_are_checked(tmp_path: Path, treadle: Treadle) -> None:
    for write, suffix in ((export_program, "pt2"), (export_onnx, "onnx")):
        with pytest.raises(ConfigError, match=rf"x.bin: the name of such a file ends in \.{suffix}"):
            write(nn.Linear(1, 1), {}, tmp_path / "x.bin")
    with pytest.raises(ConfigError, match="there are no inputs in it"):
        export_program(nn.Linear(1, 1), {}, tmp_path / "x.pt2")
    model = nn.Linear(2, 1)
    trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=(), run_dir="plain")
    trainer.train([(torch.ones(2), torch.zeros(1))] * 4, num_epochs=1)
    assert "nothing in plain says how its model is built, since a program of yours did that" in refused(
        treadle, "plain", "-f", "onnx"
    )
    assert "--example is for --format onnx and torch.export alone" in refused(treadle, "plain", "--example", "x")
    train(build("gpt2"), tmp_path / "run", steps=1)
    assert "run has no adapters to merge" in refused(treadle, "run", "-f", "onnx", "--merge")
