"""A Vision Transformer on Fashion-MNIST, for one GPU."""

import torch

from treadle.config import LazyCall as L
from treadle.config import get_config
from treadle.optim.param_groups import get_default_optimizer_params

from .fashion import fashion_loader
from .vit import VisionTransformer

# Where the four files lie; None for fashion-mnist in the folder that TREADLE_DATA names.
folder = None
# So many of the training images are held out: the best checkpoint is best at them, and not at the test images.
held_out = 5000

model = L(VisionTransformer)(patch_size=4, layers=8, heads=6, width=192, dropout=0.1, label_smoothing=0.1)
optim = L(torch.optim.AdamW)(
    params=L(get_default_optimizer_params)(
        weight_decay_norm=0.0, weight_decay_bias=0.0, clip_grad_max_norm=1.0, clip_grad_norm_type=2.0
    ),
    lr=1e-3,
    weight_decay=0.05,
    fused=True,
)

_images = {"held_out": "${held_out}", "folder": "${folder}"}
dataloader = {
    "train": L(fashion_loader)(split="train", shift=2, flip=True, **_images),
    "test": {
        "validation": L(fashion_loader)(split="validation", **_images),
        "test": L(fashion_loader)(split="test", **_images),
    },
}

train = get_config("common/train.py").train
train.scheduler.update(warmup_factor=0.01, alpha=0.01)
train.evaluation.evaluator.topk = (1,)
train.update(
    output_dir="runs/vit_fashion",
    train_iter=0,
    train_epoch=60,
    train_micro_batch_size=256,
    # Divides both sets of test images: one shape, which is compiled for once.
    test_micro_batch_size=1000,
    warmup_ratio=0.05,
    amp={"enabled": True},
    execution="compile",
    log_period=50,
    checkpointer={"save_model_after_n_epoch": 10, "max_to_keep": 1},
    evaluation={"eval_after_n_epoch": 2, "eval_metric": "validation/Acc@1"},
)
