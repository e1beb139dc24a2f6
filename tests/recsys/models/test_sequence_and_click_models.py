"""What holds for every model of sequences and of clicks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.guards.no_sync import no_sync
from tests.recsys.models.building import assert_one_row_is_enough, train_steps
from tests.recsys.models.tiny_shop import CONTEXT, EVERY, INTEREST, RANKING, VARIANTS, Built, build
from treadle.recsys import InputType, ModelType, get_model
from treadle.recsys.config.defaults import packaged

PENALTIES = {"DCN": {"reg_weight": 0.01}, "DCNv2": {"reg_weight": 0.01}}
"""RecBole's penalty of 2 is most of the loss of a small model, and would hide whether the labels are learnt."""

Make = Callable[..., Built]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def built(variant: str, **settings: Any) -> Built:
        name, own = VARIANTS[variant]
        return build(tmp_path, name, **{**own, **settings})

    return built


every_variant = pytest.mark.parametrize("variant", VARIANTS)
every_model = pytest.mark.parametrize("variant", EVERY)
every_ranking = pytest.mark.parametrize("variant", [name for name in VARIANTS if VARIANTS[name][0] in RANKING])


@every_variant
def test_the_loss_falls_in_thirty_steps(make: Make, variant: str) -> None:
    losses = train_steps(make(variant, **PENALTIES.get(VARIANTS[variant][0], {})), 30)
    assert losses[-1] < 0.9 * losses[0]


@every_variant
def test_gradients_reach_every_parameter_that_learns(make: Make, variant: str) -> None:
    built = make(variant)
    built.model.train()
    built.model.calculate_loss(built.batch()).backward()
    without = [name for name, one in built.model.named_parameters() if one.requires_grad and one.grad is None]
    assert not without
    still = [name for name, one in built.model.named_parameters() if one.grad is not None and not one.grad.any()]
    assert not still


FROZEN = {
    "LR": (
        "token_embedding_table.",
        "float_embedding_table.",
        "token_seq_embedding_table.",
        "float_seq_embedding_table.",
    ),
    "DCN": ("first_order_linear.",),
    "DCNv2": ("first_order_linear.",),
    "DIN": ("embedding_layer.tables.user.",),
}
"""Parts that RecBole's models have and do not use."""


@every_model
def test_only_parts_that_nothing_uses_are_frozen(make: Make, variant: str) -> None:
    frozen = [name for name, one in make(variant).model.named_parameters() if not one.requires_grad]
    assert all(name.startswith(FROZEN.get(variant, ())) for name in frozen)
    assert bool(frozen) == (variant in FROZEN)


@every_variant
def test_the_same_seed_gives_the_same_training(make: Make, variant: str) -> None:
    torch.manual_seed(7)
    first = train_steps(make(variant), 3)
    torch.manual_seed(8)
    assert train_steps(make(variant), 3) == first


@every_variant
def test_loss_and_gradients_are_finite_in_bf16(make: Make, variant: str) -> None:
    built = make(variant)
    built.model.train()
    torch.manual_seed(0)
    exact = built.model.calculate_loss(built.batch())
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        loss = built.model.calculate_loss(built.batch())
        scores = built.model.predict(_rows(built))
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.05)
    assert scores.isfinite().all()
    assert all(one.grad.isfinite().all() for one in built.model.parameters() if one.grad is not None)


@every_variant
def test_a_loss_never_reads_the_device(make: Make, variant: str) -> None:
    built = make(variant)
    built.model.train()
    batch = built.batch()
    with no_sync():
        loss = built.model.calculate_loss(batch)
        loss.backward()


@every_model
def test_a_prediction_never_reads_the_device(make: Make, variant: str) -> None:
    built = make(variant)
    built.model.eval()
    batch = _rows(built)
    with torch.no_grad(), no_sync():
        built.model.predict(batch)
        if variant in RANKING:
            built.model.full_sort_predict(batch)


@every_ranking
def test_predict_agrees_with_full_sort_predict(make: Make, variant: str) -> None:
    built = make(variant)
    train_steps(built, 3)
    built.model.eval()
    batch = _rows(built)
    with torch.no_grad():
        scores = built.model.full_sort_predict(batch)
        single = built.model.predict(batch)
    assert scores.shape == (len(batch), built.model.n_items)
    torch.testing.assert_close(scores[torch.arange(len(batch)), batch["item_id"]], single)


@pytest.mark.parametrize("variant", [*INTEREST, *CONTEXT])
def test_a_click_is_predicted_as_a_probability(make: Make, variant: str) -> None:
    built = make(variant)
    built.model.eval()
    batch = built.batch()
    with torch.no_grad():
        found = built.model.predict(batch)
    assert found.shape == (len(batch),)
    assert ((found > 0) & (found < 1)).all()
    with pytest.raises(NotImplementedError, match="does not define full_sort_predict"):
        built.model.full_sort_predict(batch)


@every_variant
def test_a_state_dict_brings_every_prediction_back(make: Make, variant: str) -> None:
    built = make(variant)
    train_steps(built, 2)
    state = {name: value.clone() for name, value in built.model.state_dict().items()}
    other = make(variant)
    train_steps(other, 1)
    other.model.load_state_dict(state)
    built.model.eval()
    other.model.eval()
    batch = _rows(built)
    with torch.no_grad():
        assert torch.equal(built.model.predict(batch), other.model.predict(batch))


@every_variant
def test_a_batch_of_one_row_can_be_trained_on(make: Make, variant: str) -> None:
    assert_one_row_is_enough(make(variant))


@every_variant
def test_double_precision_is_kept(make: Make, variant: str) -> None:
    built = make(variant)
    built.model.double().eval()
    assert built.model.calculate_loss(built.batch()).dtype == torch.float64
    with torch.no_grad():
        assert built.model.predict(_rows(built)).dtype == torch.float64


@every_model
def test_every_packaged_setting_of_a_model_is_read(make: Make, variant: str) -> None:
    settings = packaged(f"model/{variant}")
    assert settings
    config = make(variant, **({"mixed": True} if variant == "DCNv2" else {})).config
    assert set(settings) <= config._read | set(config.external_config_dict) | {"metrics", "valid_metric"}


def test_recboles_names_are_known() -> None:
    assert get_model("DCNV2") is get_model("DCNv2")
    for name in (*RANKING, *INTEREST):
        assert get_model(name).type is ModelType.SEQUENTIAL
    for name in (*INTEREST, *CONTEXT):
        assert get_model(name).input_type is InputType.POINTWISE


def _rows(built: Built) -> Any:
    """Return rows of an evaluation."""
    return built.valid.batch_at(0, 0)[0]
