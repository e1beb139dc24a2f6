"""A LoRA run that is killed at random moments ends like one that was left alone; its saves are small."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hf.lora_program import OUTCOME, STEPS, UPDATES, train
from tests.hf.test_export import collator, lora, rows
from tests.interrupting import assert_same_bits
from treadle import Trainer
from treadle.checkpoint import CheckpointStore, Policy, read_file

KILLS = 20 if os.environ.get("TREADLE_LONG") else 5
"""How often runs are killed; 20 times by `make long`."""
# A server imports everything once and forks a process for each start: most of a start would be that import.
server = multiprocessing.get_context("forkserver")


def start(folder: Path) -> Any:
    """Start the program in a process of its own."""
    server.set_forkserver_preload(["tests.hf.lora_program", "transformers.models.llama", "peft", "torch._dynamo"])
    folder.mkdir(parents=True, exist_ok=True)
    process = server.Process(target=train, args=(folder,))
    process.start()
    return process


@pytest.mark.slow
def test_a_lora_run_killed_again_and_again_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    whole, chance = tmp_path / "whole", random.Random(0)
    # The first start waits for the imports of the server.
    end(start(tmp_path / "first"))
    began = time.monotonic()
    end(start(whole))
    longest = time.monotonic() - began
    assert (whole / UPDATES).read_text() == f"0 {STEPS} {STEPS}"
    kills = resumed = number = 0
    while kills < KILLS:
        folder = tmp_path / str(number)
        process = start(folder)
        process.join(chance.uniform(0.2, 0.8) * longest)
        if kills % 5 == 4:
            # However slow the machine is now, this folder is resumed from a checkpoint.
            store = CheckpointStore(folder / "checkpoints", Policy())
            while process.is_alive() and store.newest_good() is None:
                process.join(0.02)
        process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        kills += process.exitcode != 0
        if process.exitcode == 0 or kills % 5 == 0:
            if process.exitcode:
                end(start(folder))
            resumed += assert_same_end(folder, whole)
            number += 1
    assert resumed


def end(process: Any) -> None:
    """Wait until a start has come to its end."""
    process.join(120)
    assert process.exitcode == 0


def assert_same_end(folder: Path, whole: Path) -> bool:
    """Compare what two runs came to, bit for bit; return whether the last start of the one resumed."""
    began, made, at = map(int, (folder / UPDATES).read_text().split())
    assert (began + made, at) == (STEPS, STEPS)
    assert began % 2 == 0
    assert_same_bits(read_file(folder / OUTCOME), read_file(whole / OUTCOME))
    return 0 < began < STEPS


def test_a_save_of_a_lora_holds_three_times_what_is_trained(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.hf.models import TOKENS

    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = lora(LlamaForCausalLM(LlamaConfig(**sizes, **TOKENS)))
    model.add_adapter("wide", model.peft_config["default"].__class__(r=16, target_modules="all-linear"))
    model.set_adapter("wide")
    weights = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-3)
    keep_all = Policy(keep_last=None)
    trainer = Trainer(
        model, None, optimizer, callbacks=(), seed=0, device="cpu", run_dir=tmp_path, checkpoints=keep_all
    )
    trainer.train(rows(), max_steps=3, per_device_batch_size=4, collate_fn=collator(), save_every=1)
    store = CheckpointStore(tmp_path / "checkpoints", Policy())
    trained = sum(one.nbytes for one in weights)
    frozen = sum(one.nbytes for one in model.parameters()) - trained
    alone = [path.stat().st_size for path in store.path(2).iterdir() if path.stat().st_nlink == 1]
    # The weights and the two averages of Adam; beside them what else a run is made of: 13 kB are the names of the
    # tensors, which safetensors keeps as they are, and 8 kB generators.
    assert 3 * trained < sum(alone) < 3 * trained + 35_000
    everything = {path.stat().st_ino: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    assert frozen < sum(everything.values()) < frozen + 4 * (3 * trained + 80_000)
