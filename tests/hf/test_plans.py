"""Blocks, layers to divide and stages are found from a model of transformers, or refused with the reason."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.hf.models import build, sample, weights
from treadle import Compile, Trainer
from treadle.errors import ConfigError, DataError
from treadle.execution.compiled import CompiledVerbs, matching
from treadle.memory.activation_checkpointing import repeated_blocks
from treadle.parallel import Plan
from treadle.parallel.pipeline.loss import Entry, NamedLoss
from treadle.parallel.pipeline.stages import stage_modules
from treadle.parallel.pretrained import tensor_plan_of

BLOCKS = {
    "llama": "LlamaDecoderLayer",
    "qwen3": "Qwen3DecoderLayer",
    "gemma": "GemmaDecoderLayer",
    "gpt2": "GPT2Block",
    "bert": "BertLayer",
    "t5": "T5Block",
    "vit": "ViTLayer",
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_the_blocks_of_a_model_are_found(kind: str) -> None:
    model = build(kind)
    found = [block for _, block in repeated_blocks(model)]
    assert {type(block).__name__ for block in found} == {BLOCKS[kind]}
    assert len(found) == 2
    assert matching(model, "auto") == found


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)


def test_a_model_that_is_no_row_of_blocks_is_told_so() -> None:
    for call in (
        lambda: Trainer(Plain(), nn.MSELoss(), None, activation_checkpointing="auto", callbacks=()),
        lambda: matching(Plain(), "auto"),
    ):
        with pytest.raises(ConfigError, match=r"='auto': Plain has no nn.ModuleList whose entries are its blocks; nam"):
            call()


def trained(kind: str, **options: Any) -> Trainer:
    model = build(kind, torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, None, optimizer, callbacks=(), seed=0, device="cpu", **options)
    trainer.train([sample(kind, number) for number in range(8)], max_steps=2, per_device_batch_size=4)
    return trainer


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert", "t5", "vit"])
def test_activations_of_the_blocks_that_were_found_are_computed_again(kind: str) -> None:
    plain, saving = trained(kind), trained(kind, activation_checkpointing="auto")
    assert [type(block).__name__ for _, block in saving.activation_checkpointing.blocks] == [BLOCKS[kind]] * 2
    assert saving.run_config is not None
    assert saving.run_config.activation_checkpointing == ["auto"]
    # The blocks of T5 share a bias, whose gradients are added up in another order; its norms are in single precision.
    apart = 1e-7 if kind == "t5" else 0.0
    torch.testing.assert_close(weights(plain.model), weights(saving.model), rtol=0, atol=apart)


def test_the_blocks_that_were_found_are_compiled() -> None:
    model = build("bert")
    CompiledVerbs(Compile(modules="auto"), model)
    compiled = {name for name, module in model.named_modules() if module._compiled_call_impl is not None}
    assert compiled == {"bert.encoder.layer.0", "bert.encoder.layer.1"}


def plan_of(kind: str, ranks: int = 2) -> Any:
    return tensor_plan_of(build(kind), Plan(tensor=ranks))


def test_a_model_says_which_of_its_layers_are_divided() -> None:
    found = plan_of("llama with two key heads")
    assert found["model.layers.*.self_attn.q_proj"] == "column"
    assert found["model.layers.*.mlp.down_proj"] == "row"
    assert found["lm_head"] == "column_gathered"
    assert plan_of("qwen3")["model.layers.*.self_attn.q_norm"] == "summed"
    assert plan_of("bert")["bert.encoder.layer.*.attention.output.dense"] == "row"
    assert plan_of("vit")["vit.layers.*.mlp.fc1"] == "column"


def test_a_tied_head_stays_whole() -> None:
    found = plan_of("llama with a tied head")
    assert "lm_head" not in found
    assert "model.embed_tokens" not in found
    assert found["model.layers.*.self_attn.o_proj"] == "row"


@pytest.mark.parametrize(
    ("kind", "ranks", "message"),
    [
        (
            "gpt2",
            2,
            r"the layers of GPT2LMHeadModel cannot be divided: one layer \(c_attn\) makes query",
        ),
        ("t5", 2, "the layers of T5ForConditionalGeneration cannot be divided: attention adds a bias for all heads"),
        ("llama", 2, r"tensor=2 does not divide the 1 heads of LlamaForCausalLM \(config.num_key_value_heads\)"),
        ("bert", 3, r"tensor=3 does not divide the 2 heads of BertForMaskedLM \(config.num_attention_heads\)"),
    ],
)
def test_layers_that_cannot_be_divided_are_refused_with_the_reason(kind: str, ranks: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(kind, ranks)


def test_a_model_of_a_kind_that_nobody_knows_is_told_what_to_pass() -> None:
    model = build("bert")
    for layer in model.bert.encoder.layer:
        layer.__class__ = type("OwnLayer", (type(layer),), {})
    model._no_split_modules = {"OwnLayer"}
    with pytest.raises(ConfigError, match=r"tensor=2, but BertForMaskedLM has no plan for its layers; pass"):
        tensor_plan_of(model, Plan(tensor=2))


def test_stages_of_a_model_of_transformers_take_batches_by_name() -> None:
    loss = NamedLoss(build("llama"), None, None, lambda batch: Entry((), {}, {}))
    with pytest.raises(DataError, match="a batch is a list; give a model of transformers a dict of tensors"):
        loss.enter([torch.zeros(2)])


def test_a_loss_function_gets_the_scores_of_a_model_in_stages() -> None:
    model = build("vit", torch.float64)
    batch = torch.utils.data.default_collate([sample("vit", number) for number in range(3)])
    parts = stage_modules(model, Plan(pipeline=2))
    hidden = parts[0].joined(parts[2])(None, **batch)
    loss = NamedLoss(model, nn.functional.cross_entropy, None, lambda batch: Entry((), {}, {}))
    assert torch.equal(loss.finish(parts[3], hidden, batch)["loss"], model(**batch).loss)


def test_a_plan_of_styles_that_are_not_known_is_refused() -> None:
    model = build("llama")
    model._tp_plan = {"model.layers.*.mlp.experts": "grouped_gemm"}
    with pytest.raises(ConfigError, match=r"has for its layers asks for \['grouped_gemm'\], which is not known here"):
        tensor_plan_of(model, Plan(tensor=2))


@pytest.mark.parametrize("kind", ["llama with a tied head", "qwen3", "gemma", "gpt2", "bert", "vit"])
def test_what_data_goes_through_one_after_the_other_does_what_the_model_does(kind: str) -> None:
    model = build(kind, torch.float64).train()
    batch = torch.utils.data.default_collate([sample(kind, number) for number in range(3)])
    parts = stage_modules(model, Plan(pipeline=2))
    assert len(parts) == 4
    held = {id(weight) for part in parts for weight in part.parameters()}
    assert held == {id(weight) for weight in model.parameters()}
    hidden: Any = None
    for part in (parts[0].joined(parts[1]), parts[2]):
        hidden = part(hidden, **batch)
    outputs, expected = parts[3](hidden, **batch), model(**batch)
    assert torch.equal(outputs["logits"], expected["logits"])
    assert torch.equal(outputs["loss"], expected["loss"])


def test_two_rows_of_blocks_are_no_stages() -> None:
    message = r"T5ForConditionalGeneration has 2 rows of blocks \(decoder.block, encoder.block\), and stages"
    with pytest.raises(ConfigError, match=message):
        stage_modules(build("t5"), Plan(pipeline=2))


def test_a_norm_that_was_made_before_the_blocks_is_not_guessed_about() -> None:
    model = build("llama")
    base = model.model
    base._modules = {"norm": base._modules.pop("norm"), **base._modules}
    with pytest.raises(ConfigError, match=r"whether \['norm'\] of LlamaModel come before or after its blocks"):
        stage_modules(model, Plan(pipeline=2))
