"""Samplers and loaders written for RecBole, and its steps of preparing data, with the import line changed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.recsys.trainer.runs import Run as SmallRun
from tests.recsys.trainer.runs import fit_through, graph, interactions, settings
from treadle.errors import ConfigError, DataError
from treadle.recsys import Config, compat, create_dataset, data_preparation, get_model, get_trainer, init_seed

with compat.recbole_names():
    from recbole.data.dataloader import (
        AbstractDataLoader,
        FullSortEvalDataLoader,
        NegSampleDataLoader,
        NegSampleEvalDataLoader,
        TrainDataLoader,
    )
    from recbole.data.interaction import Interaction
    from recbole.data.transform import Equal, InverseItemSequence, UserDefinedTransform, construct_transform
    from recbole.data.utils import create_samplers, get_dataloader, load_split_dataloaders, save_split_dataloaders
    from recbole.sampler import KGSampler, RepeatableSampler, Sampler, SeqSampler
    from recbole.sampler.sampler import AbstractSampler


def prepared(folder: Path, model: str = "BPR", **given: Any) -> tuple[Config, Any]:
    config = Config(model, "toy", config_dict=settings(folder, **{"embedding_size": 8, **given}))
    further = graph() if model == "CKE" else {}
    return config, create_dataset(config, inter=interactions(), **further)


def by_steps(config: Config, dataset: Any) -> tuple[Any, Any, Any]:
    """Prepare data as RecBole's own `data_preparation` does."""
    built = dataset.build()
    train_sampler, valid_sampler, test_sampler = create_samplers(config, dataset, built)
    further = () if config["MODEL_TYPE"].name != "KNOWLEDGE" else (KGSampler(dataset),)
    train = get_dataloader(config, "train")(config, built[0], train_sampler, *further, shuffle=config["shuffle"])
    valid = get_dataloader(config, "valid")(config, built[1], valid_sampler, shuffle=False)
    test = get_dataloader(config, "test")(config, built[2], test_sampler, shuffle=False)
    return train, valid, test


@pytest.mark.parametrize("model", ["BPR", "CKE", "NeuMF", "MultiVAE", "GRU4Rec"])
def test_the_steps_one_by_one_make_data_that_trains(model: str, tmp_path: Path) -> None:
    small: dict[str, Any] = {
        "MultiVAE": {"mlp_hidden_size": [16], "latent_dimension": 8},
        "GRU4Rec": {"hidden_size": 8, "MAX_ITEM_LIST_LENGTH": 5},
        "CKE": {"kg_embedding_size": 8},
    }.get(model, {})
    config, dataset = prepared(tmp_path, model, epochs=1, **small)
    train, valid, test = by_steps(config, dataset)
    trainer = get_trainer(config, get_model(model)(config, train.dataset))
    trainer.fit(train, valid, verbose=False)
    assert set(trainer.evaluate(test)) == {"recall@5", "ndcg@5", "mrr@5"}


def test_a_full_ranking_by_the_steps_is_that_of_data_preparation(tmp_path: Path) -> None:
    config, dataset = prepared(tmp_path)
    parts = [loaders[1:] for loaders in (by_steps(config, dataset), data_preparation(config, dataset))]
    for mine, other in zip(*parts, strict=True):
        assert mine.seen.keys.equal(other.seen.keys)
        assert mine.positives.keys.equal(other.positives.keys)


def test_a_sampled_ranking_by_the_steps_ranks_among_what_was_not_used(tmp_path: Path) -> None:
    config, dataset = prepared(tmp_path, eval_args={"mode": "uni5"})
    test = by_steps(config, dataset)[2]
    assert isinstance(test, NegSampleEvalDataLoader)
    seen = data_preparation(Config("BPR", "toy", config_dict=settings(tmp_path)), dataset)[2]
    assert seen is not None
    used = seen.seen | seen.positives  # type: ignore[attr-defined]
    assert not used.contains(test.negatives.users, test.negatives.items).any()
    assert (test.negatives.counts[test.queries] > 0).all()
    # Drawn once, from the seed, and not again.
    assert by_steps(config, dataset)[2].negatives.keys.equal(test.negatives.keys)


def test_a_phase_or_a_mode_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    config, dataset = prepared(tmp_path)
    built = dataset.build()
    sampler = Sampler(["train", "valid", "test"], built)
    with pytest.raises(ConfigError, match=r"phase='trial' does not exist; there are \['train', 'valid', 'test'"):
        get_dataloader(config, "trial")
    with pytest.raises(ConfigError, match="Sampler knows no used_ids of a phase; call set_phase"):
        FullSortEvalDataLoader(config, built[1], sampler)
    with pytest.raises(ConfigError, match=r"eval_args\.mode is 'full' for valid, which ranks among no drawn items"):
        NegSampleEvalDataLoader(config, built[1], sampler.set_phase("valid"))
    for call in (lambda: save_split_dataloaders(config, ()), lambda: load_split_dataloaders(config)):
        with pytest.raises(ConfigError, match="keeps a pickle of loaders in RecBole; here the same settings make"):
            call()


# Samplers -----------------------------------------------------------------------------------------------------


class Even(AbstractSampler):  # type: ignore[misc]
    """Draws items with even ids that a user has not used, from the generator of NumPy."""

    def __init__(self, dataset: Any, distribution: str = "uniform", alpha: float = 1.0) -> None:
        self.dataset, self.item_num, self.user_num = dataset, dataset.item_num, dataset.user_num
        super().__init__(distribution=distribution, alpha=alpha)

    def _uni_sampling(self, sample_num: int) -> Any:
        return 2 * np.random.randint(1, self.item_num // 2, sample_num)

    def _get_candidates_list(self) -> Any:
        return [item for item in self.dataset.inter_feat["item_id"].tolist() if item % 2 == 0]

    def get_used_ids(self) -> Any:
        used = np.array([set() for _ in range(self.user_num)])
        for user, item in zip(*(self.dataset.inter_feat[one].tolist() for one in ("user_id", "item_id")), strict=True):
            used[user].add(item)
        return used

    def sample_by_user_ids(self, user_ids: Any, item_ids: Any, num: int) -> Any:
        return self.sample_by_key_ids(user_ids, num)


@pytest.mark.parametrize("distribution", ["uniform", "popularity"])
def test_a_sampler_of_ones_own_decides_what_is_trained_against(distribution: str, tmp_path: Path) -> None:
    config, dataset = prepared(tmp_path)
    train = dataset.build()[0]
    sampler = Even(train, distribution)
    loader = TrainDataLoader(config, train, sampler, shuffle=True)
    batches = list(loader)
    users, items = (torch.cat([batch[name] for batch in batches]) for name in ("user_id", "neg_item_id"))
    assert (items % 2 == 0).all()
    assert not any(item in sampler.used_ids[user] for user, item in zip(users.tolist(), items.tolist(), strict=True))
    # Whatever the generators of the process do, a batch is what its place says; and an epoch is not the next one.
    np.random.seed(7)
    other = TrainDataLoader(config, train, Even(train, distribution), shuffle=True)
    assert other.batch_at(0, 1)["neg_item_id"].equal(batches[1]["neg_item_id"])
    assert not other.batch_at(1, 1)["neg_item_id"].equal(batches[1]["neg_item_id"])


def test_drawing_moves_no_generator_of_the_process(tmp_path: Path) -> None:
    config, dataset = prepared(tmp_path)
    train = dataset.build()[0]
    np.random.seed(3)
    expected = np.random.random()
    np.random.seed(3)
    list(TrainDataLoader(config, train, Even(train)))
    assert np.random.random() == expected


class TooFew(Even):
    def sample_by_user_ids(self, user_ids: Any, item_ids: Any, num: int) -> Any:
        return super().sample_by_user_ids(user_ids, item_ids, num)[:3]


def test_a_sampler_that_draws_too_few_is_named(tmp_path: Path) -> None:
    config, dataset = prepared(tmp_path)
    train = dataset.build()[0]
    with pytest.raises(DataError, match=r"TooFew drew 3 ids for 240 rows; it draws 1 for each"):
        next(iter(TrainDataLoader(config, train, TooFew(train))))


def test_used_ids_are_sets_by_key_as_in_recbole(tmp_path: Path) -> None:
    _, dataset = prepared(tmp_path)
    train, valid, _ = dataset.build()
    sampler = Sampler(["train", "valid"], [train, valid])
    assert list(sampler.used_ids) == ["train", "valid"]
    own = sampler.set_phase("valid")
    users, items = (torch.cat(pair) for pair in zip(train.user_item_pairs(), valid.user_item_pairs(), strict=True))
    assert own.phase == "valid"
    assert own.used_ids[3] == set(items[users == 3].tolist())
    assert own.used_ids[np.array([3, 3])][1] == own.used_ids[3]
    assert sampler.set_phase("train").used_ids[3] < own.used_ids[3]
    own.set_distribution("popularity")
    assert not any(item in own.used_ids[3] for item in own.sample_by_user_ids([3] * 50, None, 1).tolist())


def test_for_each_item_of_a_history_another_one_is_drawn(tmp_path: Path) -> None:
    _, dataset = prepared(tmp_path)
    history = torch.arange(1, 31).repeat(5)
    for distribution in ("uniform", "popularity"):
        drawn = SeqSampler(dataset, distribution).sample_neg_sequence(history)
        assert drawn.shape == history.shape
        assert not (drawn == history).any()
        assert drawn.min() >= 1
        assert drawn.max() < dataset.item_num


def test_a_repeatable_sampler_has_the_phases_it_was_given(tmp_path: Path) -> None:
    _, dataset = prepared(tmp_path)
    sampler = RepeatableSampler(["train", "valid"], dataset).set_phase("valid")
    assert sampler.phase == "valid"
    assert sampler.used_ids[1] == set()
    with pytest.raises(ConfigError, match="there is no phase 'test'"):
        sampler.set_phase("test")


# Loaders ------------------------------------------------------------------------------------------------------


class UsersOnly(AbstractDataLoader):  # type: ignore[misc]
    """A loader as RecBole's page on loaders writes one."""

    def __init__(self, config: Any, dataset: Any, sampler: Any, shuffle: bool = False) -> None:
        self.uid_field = dataset.uid_field
        self.user_list = Interaction({self.uid_field: torch.arange(dataset.user_num)})
        self.sample_size = len(self.user_list)
        super().__init__(config, dataset, sampler, shuffle=shuffle)

    def _init_batch_size_and_step(self) -> None:
        batch_size = self.config["train_batch_size"]
        self.step = batch_size
        self.set_batch_size(batch_size)

    def collate_fn(self, index: Any) -> Any:
        index = np.array(index)
        return self.user_list[index]


def test_a_loader_with_a_collate_fn_gives_its_batches(tmp_path: Path) -> None:
    config, dataset = prepared(tmp_path, train_batch_size=10)
    loader = UsersOnly(config, dataset.build()[0], None)
    assert len(loader) == 3
    assert [len(batch) for batch in loader] == [10, 10, 5]
    assert torch.cat([batch["user_id"] for batch in loader]).tolist() == list(range(25))


class OwnTraining(NegSampleDataLoader):  # type: ignore[misc]
    """RecBole's loader for training, written anew from its steps."""

    def __init__(self, config: Any, dataset: Any, sampler: Any, shuffle: bool = False) -> None:
        self._set_neg_sample_args(config, dataset, config["MODEL_INPUT_TYPE"], config["train_neg_sample_args"])
        self.sample_size = len(dataset)
        super().__init__(config, dataset, sampler, shuffle=shuffle)

    def _init_batch_size_and_step(self) -> None:
        batch_num = max(self.config["train_batch_size"] // self.times, 1)
        self.step = batch_num
        self.set_batch_size(batch_num * self.times)

    def collate_fn(self, index: Any) -> Any:
        data = self._dataset[np.array(index)]
        return self._neg_sampling(self.transform(self._dataset, data))


@pytest.mark.parametrize("model", ["BPR", "NeuMF"])
def test_a_loader_of_recboles_steps_has_its_negatives_and_trains(model: str, tmp_path: Path) -> None:
    config, dataset = prepared(tmp_path, model, train_neg_sample_args={"sample_num": 3, "layout": "flat"}, epochs=1)
    train, *_ = built = dataset.build()
    sampler, valid_sampler, _ = create_samplers(config, dataset, built)
    loader = OwnTraining(config, train, sampler, shuffle=True)
    assert (loader.step, loader.batch_size) == ((21, 63) if model == "BPR" else (16, 64))
    batch = next(iter(loader))
    assert len(batch) == loader.batch_size
    drawn = batch["neg_item_id"] if model == "BPR" else batch["item_id"][batch["label"] == 0]
    users = batch["user_id"] if model == "BPR" else batch["user_id"][batch["label"] == 0]
    assert len(drawn) == 3 * loader.step
    assert not any(item in sampler.used_ids[user] for user, item in zip(users.tolist(), drawn.tolist(), strict=True))
    trainer = get_trainer(config, get_model(model)(config, train))
    trainer.fit(loader, FullSortEvalDataLoader(config, built[1], valid_sampler), verbose=False)
    assert trainer.train_loss_dict[0] > 0


def test_the_hardest_of_several_candidates_is_taken(tmp_path: Path) -> None:
    arguments = {"sample_num": 1, "dynamic": True, "candidate_num": 20}
    config, dataset = prepared(tmp_path, train_neg_sample_args=arguments)
    train = dataset.build()[0]
    sampler = Sampler("train", train).set_phase("train")

    class HigherIsBetter:
        def predict(self, interaction: Any) -> Any:
            return interaction["item_id"].float()

    for kind in (OwnTraining, TrainDataLoader):
        loader = kind(config, train, sampler)
        with pytest.raises(ConfigError, match="dynamic needs the model"):
            next(iter(loader))
        loader.get_model(HigherIsBetter())
        assert next(iter(loader))["neg_item_id"].float().mean() > 24


class Marked(TrainDataLoader):  # type: ignore[misc]
    """Adds a column to the batches of RecBole's loader, drawn from the generators of torch and NumPy."""

    def collate_fn(self, index: Any) -> Any:
        batch = super().collate_fn(index)
        noise = torch.rand(len(batch)) + float(np.random.random())
        batch.update(Interaction({"noise": noise}))
        return batch


class Shifted(TrainDataLoader):  # type: ignore[misc]
    """Overrides the step that adds negatives."""

    def _neg_sampling(self, inter_feat: Any) -> Any:
        batch = super()._neg_sampling(inter_feat)
        batch["neg_item_id"] = batch["neg_item_id"] % 3 + 1
        return batch


def test_overridden_steps_of_the_loader_for_training_are_called(tmp_path: Path) -> None:
    config, dataset = prepared(tmp_path)
    train, *_ = built = dataset.build()
    sampler = create_samplers(config, dataset, built)[0]
    plain = TrainDataLoader(config, train, sampler, shuffle=True)
    marked = Marked(config, train, sampler, shuffle=True)
    assert marked.batch_at(2, 1)["noise"].equal(marked.batch_at(2, 1)["noise"])
    assert marked.batch_at(2, 1)["item_id"].equal(plain.batch_at(2, 1)["item_id"])
    assert set(torch.cat([batch["neg_item_id"] for batch in Shifted(config, train, sampler)]).tolist()) <= {1, 2, 3}


def test_a_run_with_a_loader_of_ones_own_is_resumed_exactly(tmp_path: Path) -> None:
    def run(folder: str, *callbacks: Any) -> SmallRun:
        config, dataset = prepared(tmp_path, run_dir=str(tmp_path / folder), save_every="1 step")
        built = dataset.build()
        samplers = create_samplers(config, dataset, built)
        init_seed(config["seed"], True)
        trainer = get_trainer(config, get_model("BPR")(config, built[0]))
        trainer.callbacks += callbacks
        loader = OwnTraining(config, built[0], Even(built[0]), shuffle=True)
        return SmallRun(trainer, loader, FullSortEvalDataLoader(config, built[1], samplers[1]), None)

    whole = run("whole")
    whole.fit()
    resumed = fit_through([2, 6], lambda *callbacks: run("cut", *callbacks))
    assert resumed.trainer.run_dir == tmp_path / "cut"
    assert resumed.trainer._core.progress.step == whole.trainer._core.progress.step > 6
    for name, weights in whole.model.state_dict().items():
        assert weights.equal(resumed.model.state_dict()[name])


class OwnEvaluation(FullSortEvalDataLoader):  # type: ignore[misc]
    def collate_fn(self, index: Any) -> Any:
        raise AssertionError("nobody calls it")


class Nothing(AbstractDataLoader):  # type: ignore[misc]
    def _init_batch_size_and_step(self) -> None:
        self.set_batch_size(4)


def test_a_method_that_nothing_would_call_or_that_is_missing_is_refused(tmp_path: Path) -> None:
    config, dataset = prepared(tmp_path)
    train = dataset.build()[0]
    with pytest.raises(ConfigError, match=r"OwnEvaluation\.collate_fn is never called: an evaluation asks its loader"):
        OwnEvaluation(config, train, None)
    with pytest.raises(ConfigError, match="Nothing says neither with collate_fn"):
        Nothing(config, train, None)


def test_the_transform_of_the_settings_is_called_with_data_set_and_batch(tmp_path: Path) -> None:
    config, dataset = prepared(tmp_path, "GRU4Rec", transform="inverse_itemseq", train_all_positions=False)
    train = dataset.build()[0]
    for transform in (construct_transform(config), InverseItemSequence(config)):
        batch = transform(train, train[torch.arange(4)])
        name = next(one for one in batch.columns if one.lower() == "inverse_item_id_list")
        for row, items in enumerate(batch["item_id_list"]):
            there = items[items > 0].tolist()
            assert batch[name][row].tolist() == [0] * (len(items) - len(there)) + there
    plain, data = prepared(tmp_path)
    rows = data[torch.arange(3)]
    assert construct_transform(plain)(data, rows) is rows
    assert Equal(plain)(data, rows) is rows
    plain["transform"] = lambda dataset, interaction: (dataset, interaction)
    assert UserDefinedTransform(plain)(data, rows) == (data, rows)
    with pytest.raises(ConfigError, match="transform='crop_itemseq' is no function"):
        UserDefinedTransform(Config("BPR", "toy", config_dict={"transform": "crop_itemseq"}))(data, rows)
