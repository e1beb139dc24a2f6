"""Models of transformers keep documents of packed rows apart, or are refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.guards.no_sync import no_sync
from tests.hf.models import LENGTH, SMALL, TOKENS, VOCABULARY, build, weights
from treadle import Trainer
from treadle.data.sources import PackedDocuments
from treadle.errors import ConfigError, DataError
from treadle.ops.packed_models import check_no_leak, prepare_for_packing

LENGTHS = (3, 5, 12, 2, 7, 4, 9, 1, 6, 2)


def documents() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, VOCABULARY, (length,), generator=generator) for length in LENGTHS]


def packed() -> PackedDocuments:
    return PackedDocuments(documents(), LENGTH, padding=2)


def as_batch(rows: PackedDocuments) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def padded() -> dict[str, Tensor]:
    """Every document in a row of its own."""
    rows = torch.full((len(LENGTHS), LENGTH), 2)
    there = torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]
    rows[there] = torch.cat(documents())
    return {"input_ids": rows, "attention_mask": there.long(), "labels": torch.where(there, rows, -100)}


def gradient(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    model.zero_grad()
    model(**batch).loss.backward()
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


@pytest.mark.parametrize(
    # Llama normalises in single precision, whatever the model is in.
    ("kind", "attention", "off"),
    [("gpt2", "sdpa", 1e-12), ("gpt2", "eager", 1e-12), ("llama", "sdpa", 1e-7), ("llama", "eager", 1e-7)],
)
def test_the_gradient_of_packed_rows_is_that_of_padded_ones(kind: str, attention: str, off: float) -> None:
    model = build(kind, torch.float64)
    model.set_attn_implementation(attention)
    expected = gradient(model, padded())
    prepare_for_packing(model, packed().max_documents)
    assert len(packed()) == 5
    found = gradient(model, as_batch(packed()))
    torch.testing.assert_close(found, expected, rtol=0, atol=off)
    assert expected.abs().max() > 0.01


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_model_that_is_not_prepared_leaks_and_is_told_what_to_do(kind: str) -> None:
    model = build(kind)
    with pytest.raises(ConfigError, match=r"with sdpa attention mixes documents.*moved by.*prepare_for_packing"):
        check_no_leak(model, as_batch(packed()))
    handle = prepare_for_packing(model, packed().max_documents)
    check_no_leak(model, as_batch(packed()))
    handle.remove()
    with pytest.raises(ConfigError, match="mixes documents"):
        check_no_leak(model, as_batch(packed()))


def test_a_trial_leaves_the_model_as_it_was() -> None:
    model = build("gpt2").train()
    model.transformer.h[0].eval()
    before = [module.training for module in model.modules()]
    prepare_for_packing(model, 4)
    assert [module.training for module in model.modules()] == before
    assert all(one.grad is None for one in model.parameters())


def bloom() -> Any:
    from transformers import BloomConfig, BloomForCausalLM

    return BloomForCausalLM(BloomConfig(hidden_size=16, n_layer=2, n_head=2, **TOKENS))


def opt() -> Any:
    from transformers import OPTConfig, OPTForCausalLM

    sizes = {"hidden_size": 16, "ffn_dim": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = OPTConfig(**sizes, **TOKENS, word_embed_proj_dim=16, max_position_embeddings=32)
    config._attn_implementation = "eager"
    return OPTForCausalLM(config)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (bloom, "BloomForCausalLM with eager attention mixes documents"),
        (opt, "OPTForCausalLM with eager attention mixes documents.*attn_implementation='sdpa'"),
        (lambda: build("bert"), "BertForMaskedLM with sdpa attention mixes documents.*padded rows"),
        (lambda: build("t5"), "T5ForConditionalGeneration .* takes no packed rows .*: You must specify"),
    ],
)
def test_models_that_cannot_keep_documents_apart_are_refused_by_name(make: Any, said: str) -> None:
    torch.manual_seed(0)
    model = make()
    with pytest.raises(ConfigError, match=said):
        prepare_for_packing(model, 4)
    assert not model._forward_pre_hooks, "a model that was refused is left as it was"


class Counts(nn.Module):
    """Keeps documents apart, and looks at where a document stands in its row."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, 8), nn.Embedding(64, 8)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        place = torch.arange(input_ids.shape[1])
        return self.tokens(input_ids) + self.places(place)


def test_a_model_that_counts_positions_itself_is_refused() -> None:
    model = Counts()
    model.config = build("gpt2").config
    with pytest.raises(ConfigError, match=r"Counts .* does not go by position_ids"):
        prepare_for_packing(model, 4)


def test_a_window_that_slides_stays_the_models_own() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(**SMALL, **TOKENS, num_key_value_heads=1, sliding_window=4, max_position_embeddings=LENGTH)
    model = MistralForCausalLM(config).double().eval()
    prepare_for_packing(model, packed().max_documents)
    rows, texts = packed(), documents()
    with torch.no_grad():
        for number, row in enumerate(rows):
            logits = model(input_ids=row["input_ids"][None], position_ids=row["position_ids"][None]).logits[0]
            begin = 0
            for document in rows.documents_of(number):
                alone = model(input_ids=texts[document][None], use_cache=False).logits[0]
                torch.testing.assert_close(logits[begin : begin + len(alone)], alone, rtol=0, atol=1e-6)
                begin += len(alone)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_step_over_packed_rows_does_not_read_the_device(kind: str) -> None:
    model, batch = build(kind), as_batch(packed())
    prepare_for_packing(model, packed().max_documents)
    batch.pop("labels")
    with no_sync():
        model(**batch).logits.sum().backward()


def test_flash_attention_is_told_where_documents_begin() -> None:
    seen: list[dict[str, Any]] = []

    class Flash(nn.Module):
        """Takes what a model with flash attention takes; the kernel itself needs a GPU."""

        def __init__(self) -> None:
            super().__init__()
            self.config = build("gpt2").config
            self.config._attn_implementation = "flash_attention_2"
            self.tokens = nn.Embedding(VOCABULARY, 8)

        def forward(self, input_ids: Tensor, position_ids: Tensor, **kwargs: Any) -> Tensor:
            seen.append(kwargs)
            return self.tokens(input_ids)

    model = Flash()
    prepare_for_packing(model, 4)
    seen.clear()
    model(input_ids=torch.zeros(2, 6, dtype=torch.long), position_ids=torch.tensor([[0, 1, 0, 1, 2, 0], [*range(6)]]))
    (kwargs,) = seen
    assert kwargs["cu_seq_lens_q"].tolist() == [0, 2, 5, 6, 12, 12, 12, 12, 12]
    assert kwargs["cu_seq_lens_q"] is kwargs["cu_seq_lens_k"]
    assert (kwargs["max_length_q"], kwargs["max_length_k"], kwargs["use_cache"]) == (6, 6, False)
    seen.clear()
    mask = torch.ones(1, 6)
    model(input_ids=torch.zeros(1, 6, dtype=torch.long), position_ids=torch.arange(6)[None], attention_mask=mask)
    assert list(seen[0]) == ["attention_mask"], "rows with an attention mask are not packed"


def test_micro_batches_of_packed_rows_make_the_update_of_one_batch() -> None:
    found = []
    for parts in (1, 4):
        model = build("gpt2", torch.float64)
        prepare_for_packing(model, packed().max_documents)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        trainer = Trainer(model, None, optimizer, callbacks=(), seed=0, device="cpu")
        trainer.train(packed(), num_epochs=2, per_device_batch_size=4 // parts, gradient_accumulation_steps=parts)
        assert trainer.progress.step == 4
        found.append(weights(model))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def llama() -> Any:
    model = build("llama")
    prepare_for_packing(model, 4)
    return model


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda batch: {**batch, "position_ids": torch.arange(LENGTH).expand(2, LENGTH)},
            "no row .* holds two documents",
        ),
        (
            lambda batch: {**batch, "input_ids": torch.ones_like(batch["input_ids"])},
            "all tokens of the batch are the same",
        ),
        (
            lambda batch: {"input_ids": batch["input_ids"]},
            "tensors called position_ids or positions, .* has .'input_ids'",
        ),
    ],
)
def test_a_batch_that_shows_nothing_is_refused(change: Any, said: str, llama: Any) -> None:
    batch = {name: part[:2] for name, part in as_batch(packed()).items()}
    with pytest.raises(DataError, match=said):
        check_no_leak(llama, change(batch))


def test_a_model_without_logits_is_refused() -> None:
    class NoLogits(nn.Module):
        def forward(self, input_ids: Tensor, position_ids: Tensor) -> dict[str, Tensor]:
            return {"loss": input_ids.float().mean()}

    with pytest.raises(ConfigError, match="NoLogits returned a dict without logits, so leaks cannot be seen"):
        check_no_leak(NoLogits(), as_batch(packed()))
