"""A loader that draws negatives by RecBole's names, for loaders that are made of its steps."""

from typing import Any

import torch
from torch import Tensor

from treadle.errors import ConfigError
from treadle.recsys.config import Config
from treadle.recsys.dataset import Dataset
from treadle.recsys.enums import FeatureSource, FeatureType, InputType
from treadle.recsys.interaction import Interaction
from treadle.recsys.loading.base import AbstractDataLoader
from treadle.recsys.loading.own_sampling import as_table


class NegSampleDataLoader(AbstractDataLoader):
    """Batches with negatives, as a subclass makes them with `_set_neg_sample_args` and `_neg_sampling`.

    Args:
        config: The settings.
        dataset: The data.
        sampler: Draws items with `sample_by_user_ids`.
        shuffle: Whether each epoch has an order of its own.

    Attributes:
        times: How many rows a positive becomes.
        neg_sample_args: How negatives are drawn, as `train_neg_sample_args` has it.
        dl_format: Whether negatives are further rows, or further columns.
    """

    times = 1

    def __init__(self, config: Config, dataset: Dataset, sampler: Any = None, shuffle: bool = True) -> None:
        super().__init__(config, dataset, sampler, shuffle)

    def _set_neg_sample_args(
        self, config: Config, dataset: Dataset, dl_format: InputType, neg_sample_args: dict[str, Any]
    ) -> None:
        """Say how negatives are drawn; called before the constructor of this class."""
        self.uid_field, self.iid_field = str(dataset.uid_field), str(dataset.iid_field)
        self.dl_format, self.neg_sample_args, self.times = dl_format, neg_sample_args, 1
        self._samples = neg_sample_args["distribution"] != "none" and neg_sample_args["sample_num"] != "none"
        if not self._samples:
            return
        self.neg_sample_num = int(neg_sample_args["sample_num"])
        if dl_format is InputType.POINTWISE:
            self.times = 1 + self.neg_sample_num
            self.label_field = str(config["LABEL_FIELD"])
            dataset.set_field_property(self.label_field, FeatureType.FLOAT, FeatureSource.INTERACTION, 1)
        elif dl_format is InputType.PAIRWISE:
            self.times = self.neg_sample_num
            self.neg_prefix = str(config["NEG_PREFIX"])
            self.neg_item_id = self.neg_prefix + self.iid_field
            for name in dataset.get_item_feature().columns:
                dataset.copy_field_property(self.neg_prefix + name, name)
        else:
            raise ConfigError(f"negatives are drawn for batches of rows or of pairs, not for {dl_format}")

    def _neg_sampling(self, inter_feat: Interaction) -> Interaction:
        """Return a batch with its negatives; of several candidates the one that the model scores highest."""
        if not self._samples:
            return inter_feat
        users, items = (inter_feat[field].cpu().numpy() for field in (self.uid_field, self.iid_field))
        dynamic = bool(self.neg_sample_args.get("dynamic"))
        candidates = int(self.neg_sample_args["candidate_num"]) if dynamic else 1
        number = self.neg_sample_num * candidates
        drawn = as_table(self._sampler.sample_by_user_ids(users, items, number), len(users), number, self._sampler)
        if dynamic:
            drawn = self._hardest(inter_feat, drawn, candidates)
        negatives = drawn.T.reshape(-1)
        if self.dl_format is InputType.POINTWISE:
            return self._neg_sample_by_point_wise_sampling(inter_feat, negatives)
        return self._neg_sample_by_pair_wise_sampling(inter_feat, negatives)

    def _hardest(self, batch: Interaction, drawn: Tensor, candidates: int) -> Tensor:
        if self.model is None:
            raise ConfigError("train_neg_sample_args.dynamic needs the model: call get_model(model) on the loader")
        pairs = batch.repeat_interleave(drawn.shape[1])
        pairs[self.iid_field] = drawn.reshape(-1)
        scores = self.model.predict(self._dataset.join(pairs).to(self.device)).cpu()
        each = (len(batch), self.neg_sample_num, candidates)
        return drawn.view(each).gather(2, scores.view(each).argmax(dim=2, keepdim=True)).squeeze(2)

    def _neg_sample_by_pair_wise_sampling(self, inter_feat: Interaction, neg_item_ids: Tensor) -> Interaction:
        """Return the rows repeated for each negative, which stand in columns of their own."""
        rows = inter_feat.repeat(self.times)
        added = self._dataset.join(Interaction({self.iid_field: neg_item_ids}))
        added.add_prefix(self.neg_prefix)
        rows.update(added)
        return rows

    def _neg_sample_by_point_wise_sampling(self, inter_feat: Interaction, neg_item_ids: Tensor) -> Interaction:
        """Return the rows, and below them the rows of negatives, told apart by their label."""
        positives = len(inter_feat)
        rows = inter_feat.repeat(self.times)
        rows[self.iid_field] = torch.cat([inter_feat[self.iid_field], neg_item_ids])
        rows = self._dataset.join(rows)
        rows[self.label_field] = (torch.arange(len(rows)) < positives).float()
        return rows
