"""What people feed to models of transformers: collators, batches of a tokenizer, data sets of `datasets`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.hf.models import build, weights
from tests.hf.test_export import base
from tests.hf.text import lines, tokenizer
from tests.interrupting import CutAt, CutError, Updates
from treadle import Trainer
from treadle.data.batch import map_leaves
from treadle.errors import DataError

TEXT = tokenizer()


def classifier() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    from tests.hf.models import SMALL, TOKENS

    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**SMALL, **TOKENS, max_position_embeddings=32))


def table(**columns: Any) -> Any:
    from datasets import Dataset

    return Dataset.from_dict({"text": lines(), **columns})


def tokenized() -> Any:
    """Rows of plain numbers, with the text they were made of beside them and a label for each."""
    return table(label=[number % 2 for number in range(24)]).map(lambda row: TEXT(row["text"]))


def language_model() -> tuple[Any, Any, Any]:
    from transformers import DataCollatorForLanguageModeling

    return base(), tokenized().remove_columns("label"), DataCollatorForLanguageModeling(TEXT, mlm=False)


def masked_language_model() -> tuple[Any, Any, Any]:
    from transformers import DataCollatorForLanguageModeling

    text = tokenizer()
    text.add_special_tokens({"mask_token": "<mask>"})
    data = [text(line) for line in lines() if len(line.split()) < 10]
    return build("bert"), data, DataCollatorForLanguageModeling(text, mlm_probability=0.5)


def classification() -> tuple[Any, Any, Any]:
    from transformers import DataCollatorWithPadding

    return classifier(), tokenized(), DataCollatorWithPadding(TEXT)


def translation() -> tuple[Any, Any, Any]:
    from transformers import DataCollatorForSeq2Seq

    model = build("t5")
    data = [{**TEXT(line), "labels": TEXT(line[::-1])["input_ids"][:3]} for line in lines()]
    return model, data, DataCollatorForSeq2Seq(TEXT, model)


def tensors() -> tuple[Any, Any, Any]:
    """A data set with a format, whose rows torch itself joins."""
    data = tokenized().map(lambda row: {"input_ids": (row["input_ids"] * 5)[:8]}, remove_columns="attention_mask")
    data.set_format("torch", columns=["input_ids", "label"])
    return classifier(), data.rename_column("label", "labels"), None


def batches_of_a_tokenizer() -> tuple[Any, Any, Any]:
    def join(rows: list[Any]) -> Any:
        batch = TEXT([row["text"] for row in rows], padding=True, return_tensors="pt")
        return type(batch)({**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)})

    return base(), table(), join


def train(made: tuple[Any, Any, Any], run: Path, *callbacks: Any) -> nn.Module:
    model, data, collate_fn = made
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    trainer = Trainer(model, None, optimizer, callbacks=callbacks, seed=0, device="cpu", run_dir=run)
    options = {"per_device_batch_size": 4, "gradient_accumulation_steps": 2, "save_every": 1}
    trainer.train(data, num_epochs=2, collate_fn=collate_fn, resume="auto", **options)
    return model


@pytest.mark.parametrize(
    "make",
    [language_model, masked_language_model, classification, translation, tensors, batches_of_a_tokenizer],
)
def test_a_run_resumes_bit_for_bit_in_the_middle_of_an_epoch(make: Callable[[], Any], tmp_path: Path) -> None:
    whole = train(make(), tmp_path / "whole")
    with pytest.raises(CutError):
        train(make(), tmp_path / "cut", CutAt(4))
    updates = Updates()
    resumed = train(make(), tmp_path / "cut", updates)
    assert (updates.began, updates.made) in {(3, updates.ended - 3), (4, updates.ended - 4)}
    assert updates.ended == 6
    assert torch.equal(weights(resumed), weights(whole))
    assert (tmp_path / "cut/pretrained/tokenizer.json").exists() == hasattr(make()[2], "tokenizer")


def test_columns_that_the_model_does_not_take_are_left_out_and_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(classification(), tmp_path)
    told = "columns text of the data are left out: BertForSequenceClassification takes no such input"
    assert capsys.readouterr().out.count(told) == 1


def test_data_without_a_column_that_the_model_takes_is_refused(tmp_path: Path) -> None:
    model, _, collate_fn = classification()
    with pytest.raises(DataError, match=r"takes none of the columns \['text'\]; map a tokenizer over the data set"):
        train((model, table(), collate_fn), tmp_path)


def test_a_batch_of_a_tokenizer_keeps_its_type_when_it_moves() -> None:
    batch = TEXT(lines(3), padding=True, return_tensors="pt")
    moved = map_leaves(lambda leaf: leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf, batch)
    assert type(moved) is type(batch)
    assert {name: tensor.device.type for name, tensor in moved.items()} == dict.fromkeys(batch, "meta")
