"""Twenty-five models with the shapes they are trained in: settled before anything was timed.

All but the first, the fifth and CLIP's loss are built from configs of `transformers`, without weights from anywhere.
Widths are the published small or base ones. Where a name says how many layers there are, these are fewer than were
published, so that a compiler is done with them in seconds. Dropout is off, lest losses could not be compared, but in
the LSTM.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """A model and its batches.

    Args:
        name: What to call it.
        build: Makes the model, which returns its loss; with True a tiny one.
        batch: Makes a batch of so many samples from a generator; with True for the tiny one.
        size: Samples in a batch.
        precision: "fp32" or "bf16".
        compared: Whether losses can be compared: not with dropout.
        alone: Whether one loop at a time has to have the device, each timed after the other, and none is in fp32.
    """

    name: str
    build: Callable[[bool], nn.Module]
    batch: Callable[[torch.Generator, int, bool], Batch]
    size: int
    precision: str = "bf16"
    compared: bool = True
    alone: bool = False


class DeepCross(nn.Module):
    """DCN with three cross layers and a deep part of 3 x 400, on 26 fields."""

    def __init__(self, tiny: bool) -> None:
        super().__init__()
        self.fields, width = (4, 4) if tiny else (26, 16)
        self.embeddings = nn.ModuleList(nn.Embedding(100 if tiny else 10_000, width) for _ in range(self.fields))
        size, hidden = self.fields * width, 8 if tiny else 400
        self.crosses = nn.ModuleList(nn.Linear(size, size) for _ in range(3))
        sizes = [size, hidden, hidden, hidden]
        self.deep = nn.Sequential(*(part for a, b in pairwise(sizes)
                                    for part in (nn.Linear(a, b), nn.ReLU())))  # fmt: skip
        self.head = nn.Linear(size + hidden, 1)

    def forward(self, fields: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss of a batch."""
        first = torch.cat([table(fields[:, place]) for place, table in enumerate(self.embeddings)], dim=1)
        crossed = first
        for layer in self.crosses:
            crossed = first * layer(crossed) + crossed
        logits = self.head(torch.cat([crossed, self.deep(first)], dim=1)).squeeze(1)
        return {"loss": functional.binary_cross_entropy_with_logits(logits, labels)}


class Recurrent(nn.Module):
    """An LSTM of two layers with dropout between them."""

    def __init__(self, tiny: bool) -> None:
        super().__init__()
        self.layers = nn.LSTM(8 if tiny else 128, 8 if tiny else 256, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8 if tiny else 256, 10)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss of a batch."""
        return {"loss": functional.cross_entropy(self.head(self.layers(inputs)[0][:, -1]), labels)}


class Clip(nn.Module):
    """CLIP with its contrastive loss."""

    def __init__(self, tiny: bool) -> None:
        super().__init__()
        import transformers

        image = {**_TINY_IMAGE} if tiny else {**_BASE4, "image_size": 224, "patch_size": 32}
        text = _TINY if tiny else {**_SMALL, "vocab_size": 49_408}
        self.model = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=image))

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> dict[str, Tensor]:
        """Return the loss of a batch."""
        return {"loss": self.model(input_ids=input_ids, pixel_values=pixel_values, return_loss=True).loss}


def _pairs(generator: torch.Generator, size: int, tiny: bool) -> Batch:
    side = 32 if tiny else 224
    tokens = torch.randint(2, 50 if tiny else 49_000, (size, 8 if tiny else 77), generator=generator)
    return {"input_ids": tokens, "pixel_values": torch.randn(size, 3, side, side, generator=generator)}


def _speech(generator: torch.Generator, size: int, tiny: bool) -> Batch:
    features = torch.randn(size, 80, 3000, generator=generator)
    return {
        "input_features": features,
        "labels": torch.randint(2, 50_000, (size, 8 if tiny else 64), generator=generator),
    }


def _rows(generator: torch.Generator, size: int, tiny: bool) -> Batch:
    fields = torch.randint(100 if tiny else 10_000, (size, 4 if tiny else 26), generator=generator)
    return {"fields": fields, "labels": torch.randint(2, (size,), generator=generator).float()}


def _series(generator: torch.Generator, size: int, tiny: bool) -> Batch:
    inputs = torch.randn(size, 4 if tiny else 64, 8 if tiny else 128, generator=generator)
    return {"inputs": inputs, "labels": torch.randint(10, (size,), generator=generator)}


def _tokens(length: int, vocabulary: int, *, classes: int = 0, decoder: bool = False) -> Any:
    def make(generator: torch.Generator, size: int, tiny: bool) -> Batch:
        tokens = torch.randint(2, 50 if tiny else vocabulary, (size, 8 if tiny else length), generator=generator)
        found = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        if classes:
            return {**found, "labels": torch.randint(classes, (size,), generator=generator)}
        if decoder:
            return {"input_ids": tokens, "labels": tokens.clone()}
        return {**found, "labels": tokens.clone()}

    return make


def _images(pixels: int, *, classes: int = 10, dense: bool = False) -> Any:
    def make(generator: torch.Generator, size: int, tiny: bool) -> Batch:
        side = 32 if tiny else pixels
        images = torch.randn(size, 3, side, side, generator=generator)
        shape = (size, side, side) if dense else (size,)
        return {"pixel_values": images, "labels": torch.randint(classes, shape, generator=generator)}

    return make


def _of(config: str, model: str, *, small: dict[str, Any], **settings: Any) -> Callable[[bool], nn.Module]:
    """Return what builds a model of transformers; `small` is what a tiny one has in other sizes."""

    def build(tiny: bool) -> nn.Module:
        import transformers

        chosen = getattr(transformers, config)(**{**settings, **(small if tiny else {})})
        made: nn.Module = getattr(transformers, model)(chosen)
        return made

    return build


_OFF = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50}
_SMALL = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048}
_BASE4 = {"hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12, "intermediate_size": 3072}
_TINY_GROUPED = {**_TINY, "num_key_value_heads": 1, "head_dim": 8}
_VIT = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768, **_OFF}
_TINY_IMAGE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
               "image_size": 32, "patch_size": 8}  # fmt: skip

SHAPES = [
    Shape("DCN, 26 fields", DeepCross, _rows, 256, "fp32"),
    Shape(
        "ViT-tiny, 64 px",
        _of(
            "ViTConfig",
            "ViTForImageClassification",
            small=_TINY_IMAGE,
            image_size=64,
            patch_size=8,
            num_labels=10,
            **_VIT,
        ),
        _images(64),
        64,
    ),
    Shape(
        "BERT-small",
        _of("BertConfig", "BertForSequenceClassification", small=_TINY, **_SMALL, **_OFF),
        _tokens(128, 30_522, classes=2),
        32,
    ),
    Shape(
        "Llama 1.1B, 2,048 tokens",
        _of(
            "LlamaConfig",
            "LlamaForCausalLM",
            small=_TINY_GROUPED,
            vocab_size=32_000,
            hidden_size=2048,
            intermediate_size=5632,
            num_hidden_layers=22,
            num_attention_heads=32,
            num_key_value_heads=4,
            max_position_embeddings=2048,
            use_cache=False,
        ),
        _tokens(2048, 32_000, decoder=True),
        8,
        alone=True,
    ),
    Shape("nn.LSTM, 2 layers, dropout", Recurrent, _series, 64, "fp32", compared=False),
    Shape(
        "GPT-2, 4 layers",
        _of(
            "GPT2Config",
            "GPT2LMHeadModel",
            small={"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50},
            n_embd=768,
            n_layer=4,
            n_head=12,
            vocab_size=50_304,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        ),
        _tokens(512, 50_304),
        8,
    ),
    Shape(
        "RoBERTa-base, 4 layers",
        _of(
            "RobertaConfig",
            "RobertaForSequenceClassification",
            small={**_TINY, "max_position_embeddings": 64},
            vocab_size=50_265,
            max_position_embeddings=514,
            **_BASE4,
            **_OFF,
        ),
        _tokens(128, 50_000, classes=2),
        32,
    ),
    Shape(
        "DeBERTa-v3-small",
        _of(
            "DebertaV2Config",
            "DebertaV2ForSequenceClassification",
            small=_TINY,
            vocab_size=128_100,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_buckets=256,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            position_biased_input=False,
            max_relative_positions=-1,
            **{**_BASE4, "num_hidden_layers": 6},
            **_OFF,
        ),
        _tokens(128, 128_000, classes=2),
        16,
    ),
    Shape(
        "Qwen3 0.6B, 4 layers",
        _of(
            "Qwen3Config",
            "Qwen3ForCausalLM",
            small=_TINY_GROUPED,
            vocab_size=151_936,
            hidden_size=1024,
            intermediate_size=3072,
            num_hidden_layers=4,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            use_cache=False,
        ),
        _tokens(512, 151_000),
        4,
    ),
    Shape(
        "Gemma 2B widths, 2 layers",
        _of(
            "GemmaConfig",
            "GemmaForCausalLM",
            small=_TINY_GROUPED,
            vocab_size=256_000,
            hidden_size=2048,
            intermediate_size=16_384,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=1,
            head_dim=256,
            use_cache=False,
        ),
        _tokens(512, 256_000),
        2,
    ),
    Shape(
        "T5-small",
        _of(
            "T5Config",
            "T5ForConditionalGeneration",
            small={"d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": 2, "num_heads": 2, "vocab_size": 50},
            d_model=512,
            d_ff=2048,
            d_kv=64,
            num_layers=6,
            num_heads=8,
            vocab_size=32_128,
            dropout_rate=0.0,
            decoder_start_token_id=0,
            use_cache=False,
        ),
        _tokens(128, 32_000),
        16,
    ),
    Shape(
        "Swin-tiny",
        _of(
            "SwinConfig",
            "SwinForImageClassification",
            small={
                "image_size": 32,
                "patch_size": 2,
                "embed_dim": 8,
                "depths": [1, 1],
                "num_heads": [1, 2],
                "window_size": 2,
            },
            image_size=224,
            patch_size=4,
            embed_dim=96,
            depths=[2, 2, 6, 2],
            num_heads=[3, 6, 12, 24],
            window_size=7,
            num_labels=10,
            drop_path_rate=0.0,
            **_OFF,
        ),
        _images(224),
        32,
    ),
    Shape(
        "ConvNeXt-tiny",
        _of(
            "ConvNextConfig",
            "ConvNextForImageClassification",
            small={"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
            hidden_sizes=[96, 192, 384, 768],
            depths=[3, 3, 9, 3],
            num_labels=10,
            drop_path_rate=0.0,
        ),
        _images(224),
        32,
    ),
    Shape(
        "ResNet-50",
        _of(
            "ResNetConfig",
            "ResNetForImageClassification",
            small={"embedding_size": 8, "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
            embedding_size=64,
            hidden_sizes=[256, 512, 1024, 2048],
            depths=[3, 4, 6, 3],
            num_labels=10,
        ),
        _images(224),
        64,
    ),
    Shape(
        "EfficientNet-B0",
        _of(
            "EfficientNetConfig",
            "EfficientNetForImageClassification",
            small={"hidden_dim": 1280},
            width_coefficient=1.0,
            depth_coefficient=1.0,
            image_size=224,
            hidden_dim=1280,
            num_labels=10,
            dropout_rate=0.0,
            drop_connect_rate=0.0,
        ),
        _images(224),
        64,
    ),
    Shape(
        "DINOv2-small",
        _of(
            "Dinov2Config",
            "Dinov2ForImageClassification",
            small={**_TINY_IMAGE, "mlp_ratio": 2},
            hidden_size=384,
            num_hidden_layers=12,
            num_attention_heads=6,
            image_size=224,
            patch_size=14,
            num_labels=10,
            drop_path_rate=0.0,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        _images(224),
        32,
    ),
    Shape(
        "SegFormer-B0",
        _of(
            "SegformerConfig",
            "SegformerForSemanticSegmentation",
            small={},
            num_labels=10,
            drop_path_rate=0.0,
            classifier_dropout_prob=0.0,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        _images(128, dense=True),
        16,
    ),
    Shape(
        "DistilBERT",
        _of(
            "DistilBertConfig",
            "DistilBertForSequenceClassification",
            small={"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "vocab_size": 50},
            dropout=0.0,
            attention_dropout=0.0,
            seq_classif_dropout=0.0,
        ),
        _tokens(128, 30_522, classes=2),
        32,
    ),
    Shape("CLIP, widths of base, 4 + 4 layers", Clip, _pairs, 32),
    Shape(
        "Whisper-tiny",
        _of(
            "WhisperConfig",
            "WhisperForConditionalGeneration",
            small={
                "d_model": 16,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_ffn_dim": 32,
                "decoder_ffn_dim": 32,
                "encoder_attention_heads": 2,
                "decoder_attention_heads": 2,
            },
            d_model=384,
            encoder_layers=4,
            decoder_layers=4,
            encoder_attention_heads=6,
            decoder_attention_heads=6,
            encoder_ffn_dim=1536,
            decoder_ffn_dim=1536,
            use_cache=False,
        ),
        _speech,
        8,
    ),
    Shape(
        "OPT-125M, 4 layers",
        _of(
            "OPTConfig",
            "OPTForCausalLM",
            small={
                "hidden_size": 16,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "ffn_dim": 32,
                "vocab_size": 50,
                "word_embed_proj_dim": 16,
            },
            hidden_size=768,
            num_hidden_layers=4,
            num_attention_heads=12,
            ffn_dim=3072,
            vocab_size=50_272,
            dropout=0.0,
            use_cache=False,
        ),
        _tokens(512, 50_000),
        8,
    ),
    Shape(
        "Mistral widths / 4, 4 layers",
        _of(
            "MistralConfig",
            "MistralForCausalLM",
            small=_TINY_GROUPED,
            vocab_size=32_000,
            hidden_size=1024,
            intermediate_size=3584,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=2,
            sliding_window=256,
            use_cache=False,
        ),
        _tokens(512, 32_000),
        8,
    ),
    Shape(
        "BART-base, 3 + 3 layers",
        _of(
            "BartConfig",
            "BartForConditionalGeneration",
            small={
                "d_model": 16,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_attention_heads": 2,
                "decoder_attention_heads": 2,
                "encoder_ffn_dim": 32,
                "decoder_ffn_dim": 32,
                "vocab_size": 50,
            },
            d_model=768,
            encoder_layers=3,
            decoder_layers=3,
            encoder_attention_heads=12,
            decoder_attention_heads=12,
            encoder_ffn_dim=3072,
            decoder_ffn_dim=3072,
            vocab_size=50_265,
            dropout=0.0,
            use_cache=False,
        ),
        _tokens(128, 50_000),
        16,
    ),
    Shape(
        "MobileNetV2",
        _of(
            "MobileNetV2Config",
            "MobileNetV2ForImageClassification",
            small={},
            num_labels=10,
            classifier_dropout_prob=0.0,
        ),
        _images(128),
        64,
    ),
    Shape(
        "BEiT-base, 4 layers",
        _of(
            "BeitConfig",
            "BeitForImageClassification",
            small=_TINY_IMAGE,
            image_size=224,
            patch_size=16,
            num_labels=10,
            drop_path_rate=0.0,
            **_BASE4,
            **_OFF,
        ),
        _images(224),
        32,
    ),
]
"""What is measured, the five of the issue's table first."""
