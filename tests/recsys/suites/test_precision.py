"""Every model trains in fp32 and bf16, and on a GPU in fp16: those included that RecBole cannot train so."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.recsys.suites.every_model import MODELS, TRAINABLE, make
from treadle.precision import loss_scaling

SPARSE = ("NGCF", "LightGCN", "GCMC", "SpectralCF", "SGL", "NCL", "KGAT")
"""Models with products of sparse matrices, which autocast breaks."""
GPU: dict[str, Any] = {"use_gpu": True}
WIDE = {
    "user_embedding_size": 64,
    "item_embedding_size": 64,
    "user_hidden_size_list": [64, 64],
    "item_hidden_size_list": [64, 64],
}
ON_A_GPU: dict[str, dict[str, Any]] = {
    # A GPU drops other entries in half precision than in full, so that two runs would differ by their masks.
    "NGCF": {"message_dropout": 0.0},
    "RecVAE": {"dropout_prob": 0.0},
    "S3Rec": {"hidden_dropout_prob": 0.0, "attn_dropout_prob": 0.0},
    "KGAT": {"mess_dropout": 0.0},
    "KGIN": {"node_dropout_rate": 0.0, "mess_dropout_rate": 0.0},
    "KTUP": {"use_st_gumbel": False},
    # Its weights begin as small as in the paper: the outputs of a narrow network, and what divides by them, leave fp16.
    "DMF": WIDE,
}


LARGE = ("DMF", "RecVAE", "CKE")
"""Models with large gradients, of which the first updates in fp16 are left out until the scale of the loss suits."""


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
    assert len(MODELS) == 48


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
def test_a_model_trains_in_fp16_about_as_in_fp32(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in LARGE:
        # A scale that suits from the start: so few epochs are another training if some of their updates are left out.
        monkeypatch.setattr(loss_scaling, "HIGHEST_FIRST", 1.0)
    given = GPU | ON_A_GPU.get(name, {})
    exact = trained(tmp_path, name, precision="fp32", **given)
    scaled = trained(tmp_path, name, enable_amp=True, enable_scaler=True, **given)
    assert scaled == pytest.approx(exact, rel=0.05)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("name", TRAINABLE)
def test_a_model_trains_on_a_gpu_in_bf16_about_as_in_fp32(tmp_path: Path, name: str) -> None:
    given = GPU | ON_A_GPU.get(name, {})
    exact = trained(tmp_path, name, precision="fp32", **given)
    rounded = trained(tmp_path, name, enable_amp=True, **given)
    assert rounded == pytest.approx(exact, rel=0.05)
