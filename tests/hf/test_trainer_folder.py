"""Checkpoint folders of the Trainer of transformers are taken over, and what is not is said."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.cli.conftest import Treadle
from tests.hf.models import build, weights
from tests.hf.test_export import assert_same, base, collator, lora, rows, state_of
from treadle import Trainer, TrainerCallback
from treadle.errors import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
STEPS, RATE, DECAY = 6, 1e-2, 0.1


def checkpoint(model: nn.Module, folder: Path, steps: int = 3) -> Path:
    """Train by the Trainer of transformers over the data in order, and return the folder of a checkpoint of it."""
    from transformers import Trainer as TheirTrainer
    from transformers import TrainingArguments

    class InOrder(TheirTrainer):
        def _get_train_sampler(self, *arguments: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        save_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=RATE,
        weight_decay=DECAY,
        max_grad_norm=0.0,
        lr_scheduler_type="linear",
        optim="adamw_torch",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    InOrder(model, arguments, train_dataset=rows(), data_collator=collator()).train()
    return folder / f"checkpoint-{steps}"


def groups(model: nn.Module) -> Any:
    """The groups of transformers: what their names say is a bias or a norm has no decay."""
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    bare = [weight for name, weight in named if "bias" in name or "ln_" in name or "norm" in name]
    return [
        {"params": [w for _, w in named if all(w is not b for b in bare)], "weight_decay": DECAY},
        {"params": bare, "weight_decay": 0.0},
    ]


class Linear(TrainerCallback):
    """Goes on with the schedule of the checkpoint, and from its place in the data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_training_run_start(self, trainer: Any, **kwargs: Any) -> None:
        trainer.import_checkpoint(self.folder, load_optimizer=True, load_scheduler=True)


def resumed(model: nn.Module, folder: Path) -> nn.Module:
    """Make the steps that are left of a checkpoint of three, by a trainer of this package."""
    from torch.optim.lr_scheduler import LambdaLR

    optimizer = torch.optim.AdamW(groups(model), lr=RATE)
    trainer = Trainer(model, None, optimizer, callbacks=[Linear(folder)], device="cpu", execution="eager")
    trainer.train(
        rows()[12:],
        max_steps=3,
        per_device_batch_size=4,
        collate_fn=collator(),
        train_dataloader_kwargs={"shuffle": False},
        create_scheduler_fn=lambda opt: LambdaLR(opt, lambda step: max(0.0, (STEPS - step) / STEPS)),
        scheduler_interval="step",
    )
    return model


def gpt2() -> Any:
    """One that says what its loss is: else their trainer counts labels in it that are never predicted."""
    model = build("gpt2")
    model.loss_type = "ForCausalLM"
    return model


@pytest.mark.parametrize("make", [gpt2, base, lambda: lora(base())], ids=["gpt2", "llama", "lora"])
def test_training_resumes_where_their_trainer_saved(make: Any, tmp_path: Path) -> None:
    whole = make()
    folder = checkpoint(whole, tmp_path)
    found = resumed(make(), folder)
    torch.testing.assert_close(weights(found), weights(whole), rtol=0, atol=1e-6)
    assert not torch.allclose(weights(found), weights(make()), atol=1e-3)


def test_other_groups_of_the_optimizer_get_the_state_of_their_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(base(), tmp_path)
    one, other = base(), base()
    ours = torch.optim.AdamW(groups(one), lr=1.0), torch.optim.AdamW(other.parameters(), lr=0.5)
    for model, optimizer in zip((one, other), ours, strict=True):
        state = Trainer(model, None, optimizer, callbacks=(), device="cpu").import_checkpoint(
            folder, load_optimizer=True
        )
        assert (state["step"], state["epoch"]) == (3, 0.5)
    names = [{id(weight): name for name, weight in model.named_parameters()} for model in (one, other)]
    states = [{name[id(w)]: found for w, found in o.state.items()} for o, name in zip(ours, names, strict=True)]
    assert states[0].keys() == states[1].keys() == dict(one.named_parameters()).keys()
    for name, state in states[0].items():
        assert_same(states[1][name], state)
    # The arguments are theirs where the groups are, and ours where they are not.
    assert ours[0].param_groups[0]["lr"] == RATE / 2
    assert (ours[1].param_groups[0]["lr"], ours[1].param_groups[0]["weight_decay"]) == (0.5, 0.01)
    told = capsys.readouterr().out
    assert (
        "checkpoint-3: not brought over: where its data stood, rng_state.pth (the state of random generators)" in told
    )
    assert "training_args.bin (the arguments of the Trainer, a pickle of its own class)" in told


def test_import_makes_one_file_of_it(tmp_path: Path, treadle: Treadle) -> None:
    model = build("gpt2")
    folder = checkpoint(model, tmp_path, steps=STEPS)
    told = treadle("import", str(folder), "-o", "weights.safetensors").stdout
    assert "and the state of an optimizer of transformers written to weights.safetensors" in told
    assert "not brought over: rng_state.pth (the state of random generators)" in told
    found = build("gpt2")
    trainer = Trainer(found, None, torch.optim.AdamW(groups(found), lr=1.0), callbacks=(), device="cpu")
    trainer.load_checkpoint("weights.safetensors", load_scheduler=False)
    assert_same(state_of(found), state_of(model))
    assert trainer.optimizer.state_dict()["state"][0]["step"] == STEPS


def test_a_sharded_checkpoint_is_read_whole(tmp_path: Path) -> None:
    model = build("llama")
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    found = build("llama")
    nn.init.zeros_(found.lm_head.weight)
    trainer = Trainer(found, None, None, callbacks=(), device="cpu")
    trainer.import_checkpoint(tmp_path)
    assert torch.equal(weights(found), weights(model))
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../a.safetensors"}}')
    with pytest.raises(CheckpointError, match="does not say in which file beside it each weight is"):
        trainer.import_checkpoint(tmp_path)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    def trainer_of(model: nn.Module) -> Trainer:
        some = list(model.parameters())[:2]
        return Trainer(model, None, torch.optim.AdamW(some, lr=1.0), callbacks=(), device="cpu")

    folder = checkpoint(base(), tmp_path / "run")
    with pytest.raises(
        CheckpointError, match=r"is of an optimizer of every weight that is trained, 21 .* this one has 2"
    ):
        trainer_of(base()).import_checkpoint(folder, load_optimizer=True)
    with pytest.raises(CheckpointError, match=r"is a folder without a model\.safetensors"):
        trainer_of(base()).import_checkpoint(tmp_path)
    lora(base()).save_pretrained(tmp_path / "adapter")
    with pytest.raises(CheckpointError, match="holds the weights of an adapter, and the model has 0 adapters"):
        Trainer(base(), None, None, callbacks=(), device="cpu").import_checkpoint(tmp_path / "adapter")
    from peft import LoraConfig, get_peft_model

    other = get_peft_model(base(), LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(CheckpointError, match="holds weights of an adapter that the model does not have"):
        Trainer(other, None, None, callbacks=(), device="cpu").import_checkpoint(tmp_path / "adapter")
    (folder / "optimizer.pt").write_bytes(b"no file of torch's")
    state = Trainer(base(), None, None, callbacks=(), device="cpu").import_checkpoint(folder)
    assert "optimizer_state_dict" not in state
