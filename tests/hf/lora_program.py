"""A LoRA run that is killed again and again: started again, it resumes; its outcome is written to be compared.

Run as `python -m tests.hf.lora_program FOLDER KILLS`. It imports everything once, and forks a process for each start:
most of that would be the import.
"""

import os
import random
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import DataCollatorForLanguageModeling

from tests.hf.test_export import base, lora
from tests.hf.text import lines, tokenizer
from tests.interrupting import Updates
from treadle import Trainer, TrainerCallback
from treadle.checkpoint import CheckpointStore, Policy, write_file

OUTCOME, UPDATES, BEGINS = "outcome.safetensors", "updates.txt", "begins.txt"
STEPS = 24


class Begins(TrainerCallback):
    """Notes in the folder at which step each start takes up the run."""

    def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
        with (trainer.run_dir / BEGINS).open("a") as file:
            file.write(f"{trainer.progress.step}\n")


def train(folder: Path) -> None:
    """Train a LoRA with dropout in a folder, and write what came of it and from which step this start resumed."""
    warnings.simplefilter("ignore", FutureWarning)
    model, text = lora(base(), lora_dropout=0.2), tokenizer()
    trained = [one for one in model.parameters() if one.requires_grad]
    updates, optimizer = Updates(), torch.optim.AdamW(trained, lr=1e-2)
    trainer = Trainer(model, None, optimizer, callbacks=[updates, Begins()], seed=0, device="cpu", run_dir=folder)
    data, collator = [text(line) for line in lines()], DataCollatorForLanguageModeling(text, mlm=False)
    options = {"per_device_batch_size": 4, "gradient_accumulation_steps": 2, "collate_fn": collator}
    trainer.train(data, max_steps=STEPS, save_every=2, log_every=1, resume="auto", **options)
    (folder / UPDATES).write_text(f"{updates.began} {updates.made} {updates.ended}")
    state = {"model": dict(model.state_dict()), "optimizer": trainer.optimizer.state_dict()}
    write_file(folder / OUTCOME, state)


def start(folder: Path) -> int:
    """Fork a process that trains in a folder, and return its number."""
    folder.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        train(folder)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def end(child: int) -> None:
    """Wait until a start has come to its end."""
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main(folder: Path, kills: int) -> None:
    """Train undisturbed in the folder `whole`; in others kill the first start at its first checkpoint."""
    chance = random.Random(0)
    end(start(folder / "first"))
    began = time.monotonic()
    end(start(folder / "whole"))
    longest = time.monotonic() - began
    number = done = 0
    while done < kills:
        place = folder / f"killed_{number}"
        child = start(place)
        if done % 5:
            time.sleep(chance.uniform(0.2, 0.8) * longest)
        else:
            # However slow the machine is now: whatever comes next resumes from a checkpoint.
            store = CheckpointStore(place / "checkpoints", Policy())
            while store.newest_good() is None:
                time.sleep(0.005)
        os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, -signal.SIGKILL)
        done += status != 0
        if status == 0 or done % 5 == 0:
            if status:
                end(start(place))
            number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
