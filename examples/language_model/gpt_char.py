"""A GPT on the characters of Shakespeare, for one GPU: the published setting of nanoGPT."""

import torch

from treadle.config import LazyCall as L
from treadle.config import get_config
from treadle.optim.param_groups import get_default_optimizer_params

from .gpt import GPT
from .shakespeare import ValidationLoss, character_loader

# Where input.txt lies; None for tinyshakespeare in the folder that TREADLE_DATA names.
folder = None

model = L(GPT)(vocabulary_size=65, context=256, layers=6, heads=6, width=384, dropout=0.2, bias=False)
optim = L(torch.optim.AdamW)(
    # Matrices decay; what remains of one dimension are the norms.
    params=L(get_default_optimizer_params)(
        weight_decay_norm=0.0, weight_decay_bias=0.0, clip_grad_max_norm=1.0, clip_grad_norm_type=2.0
    ),
    lr=1e-3,
    betas=(0.9, 0.99),
    weight_decay=0.1,
    fused=True,
)

_text = {"context": "${model.context}", "vocabulary_size": "${model.vocabulary_size}", "folder": "${folder}"}
dataloader = {
    "train": L(character_loader)(split="train", **_text),
    "test": {"validation": L(character_loader)(split="validation", **_text)},
}

train = get_config("common/train.py").train
train.scheduler.update(warmup_factor=0.01, alpha=0.1)
train.update(
    output_dir="runs/gpt_char",
    train_iter=5000,
    train_micro_batch_size=64,
    # The validation text has 435 windows: three batches of one shape, which is compiled for once.
    test_micro_batch_size=145,
    warmup_ratio=0.02,
    amp={"enabled": True},
    execution="compile",
    log_period=50,
    # The model learns the training text by heart in the second half: the best checkpoint is the one to keep.
    checkpointer={"period": 1000, "max_to_keep": 1},
    evaluation={
        "evaluator": L(ValidationLoss)(),
        "eval_period": 250,
        "eval_metric": "val_loss",
        "eval_mode": "min",
    },
)
