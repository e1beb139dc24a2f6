"""A LoRA run to be killed: started again, it resumes; its outcome is written to be compared."""

import warnings
from pathlib import Path

import torch
from transformers import DataCollatorForLanguageModeling

from tests.hf.test_export import base, lora
from tests.hf.text import lines, tokenizer
from tests.interrupting import Updates
from treadle import Trainer
from treadle.checkpoint import write_file

OUTCOME, UPDATES = "outcome.safetensors", "updates.txt"
STEPS = 24


def train(folder: Path) -> None:
    """Train a LoRA with dropout in a folder, and write what came of it and from which step this start resumed."""
    warnings.simplefilter("ignore", FutureWarning)
    model, text = lora(base(), lora_dropout=0.2), tokenizer()
    trained = [one for one in model.parameters() if one.requires_grad]
    updates, optimizer = Updates(), torch.optim.AdamW(trained, lr=1e-2)
    trainer = Trainer(model, None, optimizer, callbacks=[updates], seed=0, device="cpu", run_dir=folder)
    data, collator = [text(line) for line in lines()], DataCollatorForLanguageModeling(text, mlm=False)
    options = {"per_device_batch_size": 4, "gradient_accumulation_steps": 2, "collate_fn": collator}
    trainer.train(data, max_steps=STEPS, save_every=2, log_every=1, resume="auto", **options)
    (folder / UPDATES).write_text(f"{updates.began} {updates.made} {updates.ended}")
    state = {"model": dict(model.state_dict()), "optimizer": trainer.optimizer.state_dict()}
    write_file(folder / OUTCOME, state)
