"""The same on a CPU: nanoGPT's setting for a laptop, a smaller model for fewer iterations."""

from .gpt_char import dataloader, folder, model, optim, train  # noqa: F401 - the names are the config

model.update(context=64, layers=4, heads=4, width=128, dropout=0.0)
train.update(
    output_dir="runs/gpt_char_small",
    train_iter=2000,
    train_micro_batch_size=12,
    test_micro_batch_size=64,
    warmup_ratio=0.05,
    amp={"enabled": False},
    execution="eager",
    log_period=100,
    checkpointer={"period": 500},
    dist={"device_type": "cpu"},
)
