"""The same on a CPU: larger patches, a smaller model, six epochs."""

from .vit_fashion import dataloader, folder, held_out, model, optim, train  # noqa: F401 - the names are the config

model.update(patch_size=7, layers=4, heads=4, width=64, dropout=0.0, label_smoothing=0.0)
dataloader.train.update(shift=0, flip=False)
optim.lr = 2e-3
train.update(
    output_dir="runs/vit_fashion_small",
    train_epoch=6,
    train_micro_batch_size=128,
    amp={"enabled": False},
    execution="eager",
    log_period=100,
    checkpointer={"save_model_after_n_epoch": 1},
    evaluation={"eval_after_n_epoch": 1},
    dist={"device_type": "cpu"},
)
