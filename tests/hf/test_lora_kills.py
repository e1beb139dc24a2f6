"""A LoRA run that is killed at random moments ends like one that was left alone; its saves are small."""

import os
from pathlib import Path

import pytest
import torch

from tests.forking.starting import ROOT, run
from tests.hf.lora_program import BEGINS, OUTCOME, STEPS, UPDATES
from tests.hf.test_export import collator, lora, rows
from tests.interrupting import assert_same_bits
from treadle import Trainer
from treadle.checkpoint import CheckpointStore, Policy, read_file

KILLS = 20 if os.environ.get("TREADLE_LONG") else 5
"""How often runs are killed; 20 times by `make long`."""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the killed runs are forks")
def test_a_lora_run_killed_again_and_again_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    done = run("-m", "tests.hf.lora_program", str(tmp_path), str(KILLS), cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    whole = tmp_path / "whole"
    assert (whole / UPDATES).read_text() == f"0 {STEPS} {STEPS}"
    killed = list(tmp_path.glob("killed_*"))
    assert len(killed) >= KILLS // 5
    for folder in killed:
        assert_same_end(folder, whole)
    begins = [int(line) for folder in killed for line in (folder / BEGINS).read_text().split()]
    assert any(0 < step < STEPS for step in begins)


def assert_same_end(folder: Path, whole: Path) -> None:
    """Compare what two runs came to, bit for bit."""
    began, made, at = map(int, (folder / UPDATES).read_text().split())
    assert (began + made, at) == (STEPS, STEPS)
    assert began % 2 == 0
    assert_same_bits(read_file(folder / OUTCOME), read_file(whole / OUTCOME))


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
