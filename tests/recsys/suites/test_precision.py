"""Every model trains in fp32 and bf16, and on a GPU in fp16: those included that RecBole cannot train so."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.recsys.suites.every_model import MODELS, TRAINABLE, make

SPARSE = ("NGCF", "LightGCN", "GCMC", "SpectralCF", "SGL")
"""Models with products of sparse matrices, which autocast breaks."""
GPU = {"use_gpu": True}


def trained(folder: Path, name: str, **given: Any) -> list[float]:
    """Train a model, and return the loss of each epoch."""
    run = make(folder, name, epochs=3, **given)
    before = {key: value.clone() for key, value in run.model.named_parameters() if value.requires_grad}
    _, result = run.fit()
    assert all(math.isfinite(value) for value in result.exact.values())
    after = dict(run.model.named_parameters())
    assert all(after[key].dtype == torch.float32 and after[key].isfinite().all() for key in before)
    moved = [key for key, value in before.items() if not torch.equal(value.cpu(), after[key].cpu())]
    assert len(moved) == len(before)
    return list(run.trainer.train_loss_dict.values())


def test_these_are_the_models_of_the_door() -> None:
    assert len(MODELS) == 30


@pytest.mark.parametrize("name", TRAINABLE)
def test_a_model_trains_in_bf16_about_as_in_fp32(tmp_path: Path, name: str) -> None:
    exact = trained(tmp_path, name, precision="fp32")
    rounded = trained(tmp_path, name, enable_amp=True)
    assert rounded == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize("name", SPARSE)
def test_fact_5_models_with_sparse_products_train_in_mixed_precision(tmp_path: Path, name: str) -> None:
    run = make(tmp_path, name, enable_amp=True)
    run.fit()
    assert run.trainer._core.precision.kind == "bf16"
    assert all(math.isfinite(loss) for loss in run.trainer.train_loss_dict.values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("name", TRAINABLE)
def test_a_model_trains_in_fp16_about_as_in_fp32(tmp_path: Path, name: str) -> None:
    exact = trained(tmp_path, name, precision="fp32", **GPU)
    scaled = trained(tmp_path, name, enable_amp=True, enable_scaler=True, **GPU)
    assert scaled == pytest.approx(exact, rel=0.05)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("name", TRAINABLE)
def test_a_model_trains_on_a_gpu_in_bf16_about_as_in_fp32(tmp_path: Path, name: str) -> None:
    exact = trained(tmp_path, name, precision="fp32", **GPU)
    rounded = trained(tmp_path, name, enable_amp=True, **GPU)
    assert rounded == pytest.approx(exact, rel=0.05)
