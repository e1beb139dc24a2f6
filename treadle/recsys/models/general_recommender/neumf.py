"""Neural matrix factorisation."""

from typing import Any

import torch
from torch import Tensor, nn

from treadle.checkpoint.format.file import read_file
from treadle.checkpoint.importers.weights import import_torch, weights_in
from treadle.errors import CheckpointError, ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import GeneralRecommender
from treadle.recsys.models.init import small_normal_initialization
from treadle.recsys.models.layers.mlp import MLPLayers
from treadle.recsys.models.loss import at_least_float32
from treadle.recsys.models.settings import share, sizes, whole

PAIRS = 1 << 16
"""How many pairs go through the network together where all items are scored."""


class NeuMF(GeneralRecommender):
    """A factorisation whose product is weighted (GMF), and a network over two other embeddings (MLP), in one output.

    He, Liao, Zhang, Nie, Hu and Chua, "Neural collaborative filtering", 2017. Either part can be left out with
    `mf_train` and `mlp_train`. With `use_pretrain` both start from runs of one part each, and the output weighs them
    half and half, as in section 3.4.1 of the paper.
    """

    input_type = InputType.POINTWISE

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.LABEL = str(config["LABEL_FIELD"])
        self.mf_train, self.mlp_train = bool(config["mf_train"]), bool(config["mlp_train"])
        if not (self.mf_train or self.mlp_train):
            raise ConfigError("mf_train and mlp_train are both False, so that NeuMF has no part to train")
        factors, size = whole(config, "mf_embedding_size"), whole(config, "mlp_embedding_size")
        hidden = sizes(config, "mlp_hidden_size")
        self.user_mf_embedding = nn.Embedding(self.n_users, factors)
        self.item_mf_embedding = nn.Embedding(self.n_items, factors)
        self.user_mlp_embedding = nn.Embedding(self.n_users, size)
        self.item_mlp_embedding = nn.Embedding(self.n_items, size)
        self.mlp_layers = MLPLayers([2 * size, *hidden], share(config, "dropout_prob"))
        width = factors * self.mf_train + self.mlp_layers.layers[-1] * self.mlp_train
        self.predict_layer = nn.Linear(width, 1)
        self.loss = nn.BCEWithLogitsLoss()
        # As in the paper.
        self.apply(small_normal_initialization)
        if config["use_pretrain"]:
            self.load_pretrain(config["mf_pretrain_path"], config["mlp_pretrain_path"])
        self._freeze_what_is_left_out()

    def _freeze_what_is_left_out(self) -> None:
        left_out: list[nn.Module] = [] if self.mf_train else [self.user_mf_embedding, self.item_mf_embedding]
        if not self.mlp_train:
            left_out += [self.user_mlp_embedding, self.item_mlp_embedding, self.mlp_layers]
        for part in left_out:
            part.requires_grad_(False)

    @torch.no_grad()
    def load_pretrain(self, mf_pretrain_path: Any, mlp_pretrain_path: Any) -> None:
        """Take the factorisation of one run and the network of another.

        Args:
            mf_pretrain_path: The weights of a NeuMF with `mlp_train` False, as Treadle or `torch.save` wrote them.
            mlp_pretrain_path: The weights of a NeuMF with `mf_train` False.

        Raises:
            CheckpointError: They cannot be read, or are of another size.
        """
        factors, network = _weights(mf_pretrain_path), _weights(mlp_pretrain_path)
        mixed = {name: value for name, value in network.items() if "mlp_" in name}
        mixed |= {name: value for name, value in factors.items() if "mf_embedding" in name}
        for last in ("predict_layer.weight", "predict_layer.bias"):
            parts = [weights[last] for weights in (factors, network)]
            mixed[last] = 0.5 * torch.cat(parts, dim=1) if last.endswith("weight") else 0.5 * (parts[0] + parts[1])
        try:
            self.load_state_dict(mixed)
        except RuntimeError as error:
            raise CheckpointError(
                f"the weights of mf_pretrain_path and mlp_pretrain_path do not fit: {error}"
            ) from error

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Return the logit of each pair."""
        parts = []
        if self.mf_train:
            parts.append(self.user_mf_embedding(user) * self.item_mf_embedding(item))
        if self.mlp_train:
            both = torch.cat([self.user_mlp_embedding(user), self.item_mlp_embedding(item)], dim=-1)
            parts.append(self.mlp_layers(both))
        logits: Tensor = self.predict_layer(torch.cat(parts, dim=-1)).squeeze(-1)
        return logits

    def user_vectors(self) -> Tensor:
        """Return the embeddings of each user id, of the parts that are trained one after the other."""
        return self._joined(self.user_mf_embedding, self.user_mlp_embedding)

    def item_vectors(self) -> Tensor:
        """Return the embeddings of each item id, of the parts that are trained one after the other."""
        return self._joined(self.item_mf_embedding, self.item_mlp_embedding)

    def _joined(self, factors: nn.Embedding, network: nn.Embedding) -> Tensor:
        used = ((factors, self.mf_train), (network, self.mlp_train))
        return torch.cat([table.weight for table, is_trained in used if is_trained], dim=1)

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the cross-entropy of chosen and sampled items."""
        logits = self.forward(interaction[self.USER_ID], interaction[self.ITEM_ID])
        logits = at_least_float32(logits)
        loss: Tensor = self.loss(logits, interaction[self.LABEL].to(logits.dtype))
        return loss

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the probability of each row, `[rows]`."""
        return self.forward(interaction[self.USER_ID], interaction[self.ITEM_ID]).sigmoid()

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the probabilities of all items, `[rows * n_items]`.

        The first layer of the network is linear in user and item, so that each has its share once, not once a pair.
        """
        user = interaction[self.USER_ID]
        weight, start = self.predict_layer.weight[0], 0
        logits = self.predict_layer.bias.expand(user.shape[0], self.n_items)
        if self.mf_train:
            start = self.user_mf_embedding.embedding_dim
            logits = logits + torch.matmul(
                self.user_mf_embedding(user) * weight[:start], self.item_mf_embedding.weight.T
            )
        if self.mlp_train:
            # A program takes any number of users, and cannot say in how many parts they come.
            whole = torch.compiler.is_exporting()
            users = (user,) if whole else torch.split(user, max(1, PAIRS // self.n_items))
            logits = logits + torch.cat([torch.matmul(self._network(some), weight[start:]) for some in users])
        return logits.sigmoid().view(-1)

    def _network(self, user: Tensor) -> Tensor:
        """Return the output of the network for all pairs, `[users, n_items, size]`."""
        _, first, *rest = self.mlp_layers.mlp_layers
        assert isinstance(first, nn.Linear)
        size = self.user_mlp_embedding.embedding_dim
        of_users = torch.matmul(self.user_mlp_embedding(user), first.weight[:, :size].T) + first.bias
        of_items = torch.matmul(self.item_mlp_embedding.weight, first.weight[:, size:].T)
        hidden = of_users.unsqueeze(1) + of_items
        for layer in rest:
            hidden = layer(hidden)
        return hidden


def _weights(path: Any) -> dict[str, Any]:
    if not path:
        raise ConfigError("use_pretrain needs mf_pretrain_path and mlp_pretrain_path, files with the weights of a run")
    try:
        state = read_file(path)
    except CheckpointError as error:
        if "torch.save" not in str(error):
            raise
        state = import_torch(path)
    return weights_in(state)
