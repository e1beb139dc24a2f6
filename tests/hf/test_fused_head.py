"""The head of a language model and its loss in one, found from the model, with the same numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.engine.parts import make_config
from tests.hf.models import Padded, build, weights
from tests.hf.test_export import lora
from treadle import Trainer
from treadle.config import LazyCall
from treadle.engine import DefaultTrainer
from treadle.errors import ConfigError
from treadle.hf import FusedHead
from treadle.ops.fused_head import fuse_head

KINDS = ["llama", "qwen3", "gemma", "gpt2"]
"""Of which Gemma and GPT-2 have the weights of the embedding in their heads."""


def trained(model: Any, *callbacks: Any, **settings: Any) -> Trainer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = settings.pop("loss", None)
    trainer = Trainer(model, loss, optimizer, callbacks=callbacks, seed=0, device="cpu", **settings)
    trainer.train(Padded(8), max_steps=2, per_device_batch_size=2, gradient_accumulation_steps=2)
    return trainer


@pytest.mark.parametrize("kind", KINDS)
def test_a_fused_head_trains_as_the_model_does(kind: str) -> None:
    plain, fused = build(kind, torch.float64), fuse_head(build(kind, torch.float64))
    trained(plain)
    trained(fused)
    torch.testing.assert_close(weights(fused), weights(plain), rtol=0, atol=1e-8 if kind != "gpt2" else 1e-12)
    assert list(fused.state_dict()) == list(plain.state_dict())


def test_scores_are_there_in_evaluation_and_not_in_training() -> None:
    model, plain = fuse_head(build("llama")), build("llama").eval()
    tokens = torch.arange(6).unsqueeze(0)
    assert model.train()(input_ids=tokens, labels=tokens).logits is None
    assert model(input_ids=tokens).logits.shape == (1, 6, 40)
    assert torch.equal(model.eval()(input_ids=tokens, labels=tokens).logits, plain(input_ids=tokens).logits)
    assert fuse_head(model) is model


def test_a_model_that_does_something_to_its_scores_is_refused_and_left_as_it_was() -> None:
    model = build("llama")
    score = type(model.lm_head).forward

    class Scaled(nn.Linear):
        def forward(self, hidden: Any) -> Any:
            return 30 * torch.tanh(score(self, hidden))

    model.lm_head.__class__ = Scaled
    with pytest.raises(ConfigError, match="LlamaForCausalLM does something to its scores: its loss for"):
        fuse_head(model)
    assert "forward" not in vars(model)
    assert "forward" not in vars(model.lm_head)


@pytest.mark.parametrize("kind", ["bert", "t5", "vit"])
def test_models_of_other_kinds_are_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match="is no causal language model of transformers; compute the loss by itself"):
        fuse_head(build(kind))


def test_a_head_with_a_bias_is_refused() -> None:
    model = build("llama")
    model.lm_head = nn.Linear(16, 40)
    message = r"the head of LlamaForCausalLM is Linear\(.*; it must be an nn.Linear without a bias"
    with pytest.raises(ConfigError, match=message):
        fuse_head(model)


def test_a_model_that_cannot_be_tried_is_refused_with_the_reason() -> None:
    model = build("llama")
    model.model.layers[0].self_attn = None
    with pytest.raises(ConfigError, match="fuse_head: LlamaForCausalLM failed on a few tokens: 'NoneType'"):
        fuse_head(model)
    assert "forward" not in vars(model)


# Behind a door --------------------------------------------------------------------------------------------------


def without_scores(model: Any) -> bool:
    """Whether a model, as it is in training, leaves the scores out."""
    tokens = torch.arange(6).unsqueeze(0)
    return model.train()(input_ids=tokens, labels=tokens).logits is None


def test_a_callback_turns_it_on_and_the_run_is_the_same() -> None:
    plain, fused = build("gpt2", torch.float64), build("gpt2", torch.float64)
    trained(plain)
    trained(fused, FusedHead())
    assert without_scores(fused)
    assert not without_scores(plain)
    torch.testing.assert_close(weights(fused), weights(plain), rtol=0, atol=1e-12)


def test_a_model_with_adapters_has_its_head_fused_below_them() -> None:
    plain, fused = (lora(build("llama")) for _ in range(2))
    fused.load_state_dict(plain.state_dict())
    assert fuse_head(fused) is fused
    tokens = torch.arange(6).unsqueeze(0)
    losses = [one.train()(input_ids=tokens, labels=tokens).loss for one in (plain, fused)]
    torch.testing.assert_close(losses[1], losses[0])
    for loss in losses:
        loss.backward()
    gradients = [{name: one.grad for name, one in model.named_parameters()} for model in (plain, fused)]
    assert without_scores(fused)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_a_config_turns_it_on_and_a_seeded_run_is_the_same(tmp_path: Path) -> None:
    found = []
    for callbacks in ([], [LazyCall(FusedHead)()]):
        cfg = make_config(tmp_path / str(len(callbacks)), train_iter=3, callbacks=callbacks)
        cfg.model = LazyCall(build)(kind="gpt2", dtype=torch.float64)
        cfg.dataloader = {"train": LazyCall(Padded)(count=24), "test": []}
        trainer = DefaultTrainer(cfg)
        trainer.train()
        found.append(trainer)
    assert [without_scores(one.model) for one in found] == [False, True]
    torch.testing.assert_close(weights(found[1].model), weights(found[0].model), rtol=0, atol=1e-12)


def test_it_is_refused_where_it_could_do_nothing() -> None:
    with pytest.raises(ConfigError, match=r"FusedHead: the loss is loss_func=CrossEntropyLoss.*; pass None"):
        trained(build("llama"), FusedHead(), loss=nn.CrossEntropyLoss())
    with pytest.raises(ConfigError, match="fuse_head: Linear is no causal language model of transformers"):
        trained(nn.Linear(2, 1), FusedHead())
