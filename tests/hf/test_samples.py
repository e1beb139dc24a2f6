"""What a model says as it trains: generated every so often, kept with the run, shown on its page."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.hf.models import build, weights
from tests.hf.test_export import base, collator, rows
from tests.hf.text import tokenizer
from tests.interrupting import CutAt, CutError, Updates
from treadle import Trainer
from treadle.errors import ConfigError
from treadle.hf import GenerateSamples, TokenizerFiles
from treadle.runs.reader import read_panels

TEXT = tokenizer()


def train(run: Path | None, *callbacks: Any, model: Any = None) -> Trainer:
    model = base() if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    trainer = Trainer(model, None, optimizer, callbacks=callbacks, seed=0, device="cpu", run_dir=run)
    resume: Any = None if run is None else {"resume": "auto", "save_every": 2}
    trainer.train(rows(), num_epochs=2, per_device_batch_size=8, collate_fn=collator(), **(resume or {}))
    return trainer


def shown(run: Path) -> Any:
    (panel,) = read_panels(run)
    assert (panel.title, panel.columns) == ("Samples", ("step", "prompt", "text"))
    return panel.rows


def test_samples_are_those_of_the_model_shown_newest_first_and_leave_the_training_alone(tmp_path: Path) -> None:
    sampled = GenerateSamples(TEXT, ["the cat", "dog"], every=4, max_new_tokens=5)
    trained = train(tmp_path, sampled)
    plain = train(None)
    assert torch.equal(weights(trained.model), weights(plain.model))
    assert [row[:2] for row in sampled.rows] == [(4, "the cat"), (4, "dog"), (6, "the cat"), (6, "dog")]
    assert shown(tmp_path) == tuple(sampled.rows[::-1])
    ids = TEXT("dog", return_tensors="pt")["input_ids"]
    for _ in range(5):
        ids = torch.cat([ids, plain.model.eval()(ids).logits[:, -1:].argmax(-1)], dim=1)
    assert TEXT.decode(ids[0, 1:], skip_special_tokens=True).startswith(sampled.rows[-1][2])


def test_samples_that_are_drawn_are_the_same_in_a_run_that_was_resumed(tmp_path: Path) -> None:
    def drawn() -> GenerateSamples:
        return GenerateSamples(TEXT, ["the cat"], every="2 steps", do_sample=True, max_new_tokens=6)

    train(tmp_path / "whole", drawn())
    with pytest.raises(CutError):
        train(tmp_path / "cut", drawn(), CutAt(5))
    updates, resumed = Updates(), drawn()
    train(tmp_path / "cut", resumed, updates)
    assert (updates.began, updates.made) == (4, 2)
    assert [row[0] for row in resumed.rows] == [2, 4, 6]
    assert shown(tmp_path / "cut") == shown(tmp_path / "whole")


def test_an_encoder_gets_the_prompt_and_every_epoch_has_its_samples() -> None:
    model = build("t5")
    sampled = GenerateSamples(TEXT, ["the cat"], max_new_tokens=3)
    trainer = Trainer(model, None, torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[sampled], device="cpu")
    data = [{"input_ids": torch.tensor([5, 6, 7]), "labels": torch.tensor([6, 5, 1])}] * 4
    trainer.train(data, num_epochs=2, per_device_batch_size=2)
    assert [row[0] for row in sampled.rows] == [2, 4]


def test_what_cannot_generate_is_refused(tmp_path: Path) -> None:
    for prompts in ("the cat", []):
        with pytest.raises(ConfigError, match="give a list of at least one text"):
            GenerateSamples(TEXT, prompts)
    with pytest.raises(ConfigError, match="GenerateSamples: every='never' is not a valid interval"):
        GenerateSamples(TEXT, ["a"], every="never")
    model = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match=r"a Linear has no generate\(\); give the trainer a model of transformers"):
        train(None, GenerateSamples(TEXT, ["a"]), model=model)


def test_a_tokenizer_that_no_collator_holds_is_kept_by_a_callback(tmp_path: Path) -> None:
    model = base()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, None, optimizer, callbacks=[TokenizerFiles(TEXT)], device="cpu", run_dir=tmp_path)
    trainer.train([{"input_ids": torch.ones(4).long(), "labels": torch.ones(4).long()}] * 2, max_steps=1)
    assert json.loads((tmp_path / "pretrained/tokenizer.json").read_text())["model"]["vocab"]["cat"] == 5
    with pytest.raises(ConfigError, match=r"TokenizerFiles\(3\): give a tokenizer or a processor"):
        TokenizerFiles(3)
    with pytest.raises(ConfigError, match="TokenizerFiles has nowhere to keep the tokenizer; give the trainer a run_d"):
        train(None, TokenizerFiles(TEXT))
