"""Small models of transformers, made from configs: nothing is downloaded."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

VOCABULARY, LENGTH = 40, 12
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
TOKENS: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, n_positions=LENGTH, **TOKENS, **none))


def llama(key_value_heads: int = 1, *, tied: bool = False) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {"num_key_value_heads": key_value_heads, "max_position_embeddings": LENGTH, "tie_word_embeddings": tied}
    return LlamaForCausalLM(LlamaConfig(**SMALL, **TOKENS, **settings))


def bert() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForMaskedLM(BertConfig(**SMALL, **TOKENS, max_position_embeddings=LENGTH, **none))


def qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    settings = {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": LENGTH}
    return Qwen3ForCausalLM(Qwen3Config(**SMALL, **TOKENS, **settings))


def gemma() -> Any:
    from transformers import GemmaConfig, GemmaForCausalLM

    settings = {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": LENGTH}
    return GemmaForCausalLM(GemmaConfig(**SMALL, **TOKENS, **settings))


def vit() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return ViTForImageClassification(
        ViTConfig(**SMALL, **none, image_size=8, patch_size=4, num_channels=1, num_labels=3)
    )


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
    return T5ForConditionalGeneration(T5Config(**sizes, **TOKENS, decoder_start_token_id=2))


KINDS: dict[str, Callable[[], Any]] = {"gpt2": gpt2, "llama": llama, "bert": bert, "t5": t5}
DIVISIBLE: dict[str, Callable[[], Any]] = {
    "llama with two key heads": partial(llama, 2),
    "llama with a tied head": partial(llama, 2, tied=True),
    "qwen3": qwen3,
    "gemma": gemma,
    "vit": vit,
}
"""Models whose layers two processes can share."""


def build(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return a model, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = (KINDS | DIVISIBLE)[kind]().to(dtype)
    if dtype == torch.float64 and kind not in ("bert", "t5", "vit"):
        # That of transformers is computed in single precision, whatever the model is in.
        model.loss_function = next_token_loss
    return model


def next_token_loss(logits: Tensor, labels: Tensor, vocab_size: int, **kwargs: Any) -> Tensor:
    """Compute the loss of transformers' language models in the precision of the logits."""
    items = kwargs.get("num_items_in_batch")
    targets = F.pad(labels, (0, 1), value=-100)[..., 1:].flatten()
    loss = F.cross_entropy(logits.flatten(0, 1), targets, reduction="mean" if items is None else "sum")
    return loss if items is None else loss / items


class Padded(Dataset[dict[str, Tensor]]):
    """Rows of which fewer and fewer labels count: as text of different lengths is, padded to the longest."""

    def __init__(self, count: int = 24) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(3, VOCABULARY, (count, LENGTH), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        length = 2 + (index * 5) % (LENGTH - 1)
        tokens, there = self.tokens[index], torch.arange(LENGTH) < length
        labels = torch.where(there, tokens, -100)
        return {"input_ids": torch.where(there, tokens, 2), "attention_mask": there.long(), "labels": labels}


def sample(kind: str, number: int) -> dict[str, Tensor]:
    """Return a row of data for a kind of model: padded text, or an image with its class."""
    if kind != "vit":
        return Padded(number + 1)[number]
    generator = torch.Generator().manual_seed(number)
    pixels = torch.randn(1, 8, 8, generator=generator, dtype=torch.float64)
    return {"pixel_values": pixels, "labels": torch.tensor(number % 3)}


def weights(model: nn.Module) -> Tensor:
    """Return all weights as one vector."""
    return torch.cat([one.detach().flatten() for one in model.parameters()])
