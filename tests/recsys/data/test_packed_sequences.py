"""Whole sequences as rows: nothing is lost, short ones share rows, and a batch is the same whoever makes it."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.recsys.models.tiny_shop import LENGTH, build
from treadle.errors import ConfigError
from treadle.recsys import Config, Interaction, create_dataset, data_preparation
from treadle.recsys.data.dataloader import PackedSequenceDataLoader


def loader(folder: Path, layout: str = "packed", **given: Any) -> PackedSequenceDataLoader:
    """Return the training loader of the shop."""
    made = build(folder, "gSASRec", sequence_layout=layout, **given).train
    assert isinstance(made, PackedSequenceDataLoader)
    return made


def pairs(batches: list[Interaction]) -> Counter[tuple[int, int, int]]:
    """Return how often each place in a sequence, item and item after it come."""
    found: Counter[tuple[int, int, int]] = Counter()
    for batch in batches:
        columns = [batch[name] for name in ("position_in_sequence", "item_id_list", "pos_item_id_list")]
        inside = columns[1] != 0
        found.update(zip(*(column[inside].tolist() for column in columns), strict=True))
    return found


def epoch(made: PackedSequenceDataLoader, number: int = 0) -> list[Interaction]:
    """Return the batches of an epoch."""
    return [made.batch_at(number, index) for index in range(len(made))]


def test_every_item_but_the_first_is_a_target_once_in_fewer_rows(tmp_path: Path) -> None:
    packed, padded = loader(tmp_path), loader(tmp_path, "padded")
    found = pairs(epoch(packed))
    assert found == pairs(epoch(padded)) == pairs(epoch(packed, 1))
    assert sum(found.values()) == int(padded._lengths.sum())
    assert packed.sample_size < 0.7 * padded.sample_size
    assert padded.fill < 0.7 < 0.95 < packed.fill


def test_sequences_of_a_row_follow_each_other_with_places_and_lengths_of_their_own(tmp_path: Path) -> None:
    made = loader(tmp_path)
    for batch in epoch(made):
        for items, positions, lengths, targets in zip(
            *(batch[n] for n in ("item_id_list", "position_in_sequence", "length_of_sequence", "pos_item_id_list")),
            strict=True,
        ):
            column = 0
            while column < LENGTH and lengths[column] > 0:
                length = int(lengths[column])
                own = slice(column, column + length)
                assert positions[own].tolist() == list(range(length))
                assert lengths[own].tolist() == [length] * length
                assert targets[own][:-1].tolist() == items[own][1:].tolist()
                column += length
            assert not torch.stack([items, positions, lengths, targets])[:, column:].any()


def test_long_sequences_are_cut_from_the_end_or_kept_to_their_last_items(tmp_path: Path) -> None:
    whole = loader(tmp_path, MAX_ITEM_LIST_LENGTH=4)
    last = loader(tmp_path, MAX_ITEM_LIST_LENGTH=4, train_last_stretch_only=True)
    assert max(position for position, _, _ in pairs(epoch(whole))) == 3
    assert sum(pairs(epoch(last)).values()) < sum(pairs(epoch(whole)).values())


def test_processes_share_a_batch_and_its_seed(tmp_path: Path) -> None:
    made = loader(tmp_path, train_batch_size=5 * LENGTH)
    whole = made.batch_at(3, 1)
    parts = [made.batch_at(3, 1, rank=rank, size=2) for rank in range(2)]
    assert len(whole) == 5
    for name in whole.columns:
        assert torch.equal(torch.cat([part[name] for part in parts]), whole[name])
    assert len(set(whole["negative_seed"].tolist())) == 1
    assert whole["negative_seed"][0] not in (
        made.batch_at(3, 0)["negative_seed"][0],
        made.batch_at(4, 1)["negative_seed"][0],
    )


def test_the_same_seed_packs_alike_and_another_one_otherwise(tmp_path: Path) -> None:
    first, again, other = (loader(tmp_path, seed=seed)._owners for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        ("gSASRec", {"sequence_layout": "pack"}, "sequence_layout='pack' does not exist; did you mean 'packed'"),
        (
            "gSASRec",
            {"sequence_layout": None},
            "sequence_layout=None: gSASRec is trained on whole sequences; set packed",
        ),
        (
            "SASRec",
            {"sequence_layout": "packed"},
            "SASRec is not trained on whole sequences as gSASRec, eSASRec and HSTU",
        ),
        ("HSTU", {"train_all_positions": True}, "train_all_positions=True has no use: HSTU goes by sequence_layout"),
        ("HSTU", {"transform": "crop_itemseq"}, "transform='crop_itemseq' has no use: HSTU goes by sequence_layout"),
        (
            "eSASRec",
            {"train_neg_sample_args": {"distribution": "uniform"}},
            "train_neg_sample_args=.* has no use: eSASRec samples items by itself; set n_negatives",
        ),
    ],
)
def test_settings_that_do_not_fit_the_model_are_refused(
    tmp_path: Path, model: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(tmp_path, model, **given)


def test_data_that_brings_its_own_histories_is_refused() -> None:
    part = {"user_id": ["s1", "s2"], "item_id": ["x", "y"], "item_id_list": [["y", "z", "x"], ["x"]]}
    config = Config(
        "gSASRec", "toy", config_dict={"alias_of_item_id": ["item_id_list"], "topk": [1], "valid_metric": "MRR@1"}
    )
    with pytest.raises(
        ConfigError, match="sequence_layout='packed' needs the interactions themselves, and 'toy' brings"
    ):
        data_preparation(config, create_dataset(config, inter=[part, part]))
