"""Collaborative denoising autoencoder."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import AutoEncoderMixin, GeneralRecommender
from treadle.recsys.models.histories import Histories
from treadle.recsys.models.init import xavier_normal_initialization
from treadle.recsys.models.layers.mlp import activation_layer
from treadle.recsys.models.loss import at_least_float32
from treadle.recsys.models.settings import choice, number, share, whole


class CDAE(AutoEncoderMixin, GeneralRecommender):
    """An autoencoder of a user's history, of which some is hidden, with a vector of the user's own.

    Wu, DuBois, Zheng and Ester, "Collaborative denoising auto-encoders for top-N recommender systems", 2016. As in the
    paper, the loss is added up over the items of a user and averaged over users, and weights are penalised by half
    the sum of their squares.
    """

    input_type = InputType.USERWISE

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.loss_type = choice(config, "loss_type", ("BCE", "MSE"))
        choice(config, "hid_activation", ("sigmoid", "relu", "tanh"))
        choice(config, "out_activation", ("sigmoid", "relu"))
        self.reg_weight_1, self.reg_weight_2 = number(config, "reg_weight_1"), number(config, "reg_weight_2")
        size = whole(config, "embedding_size")
        self.build_history_items(dataset)
        self.hid_activation = activation_layer(config["hid_activation"])
        self.out_activation = activation_layer(config["out_activation"])
        self.dropout = nn.Dropout(p=share(config, "corruption_ratio"))
        self.h_user = nn.Embedding(self.n_users, size)
        self.h_item = nn.Linear(self.n_items, size)
        self.out_layer = nn.Linear(size, self.n_items)
        self.apply(xavier_normal_initialization)

    def forward(self, history: Tensor, user: Tensor) -> Tensor:
        """Return the output for all items before the last activation, `[users, n_items]`."""
        output: Tensor = self.out_layer(self.encode(history, user))
        return output

    def encode(self, history: Tensor, user: Tensor) -> Tensor:
        """Return the hidden layer, `[users, size]`."""
        assert self.hid_activation is not None
        hidden: Tensor = self.hid_activation(self.h_item(self.dropout(history)) + self.h_user(user))
        return hidden

    def user_vectors(self) -> Tensor:
        """Return the hidden layer of each user id."""
        return self.encode_all_users(lambda user: self.encode(self.get_rating_matrix(user), user))

    def item_vectors(self) -> Tensor:
        """Return what the hidden layer is multiplied with for each item id."""
        return self.out_layer.weight

    @torch.no_grad()
    def score_histories(self, histories: Histories) -> Tensor:
        """Return the scores of all items for people who have a history, and for a vector of their own the mean one."""
        assert self.hid_activation is not None
        trained = (self.histories.counts > 0).to(self.h_user.weight.dtype)
        mean = trained @ self.h_user.weight / trained.sum().clamp(min=1)
        rows = histories.rows(torch.arange(histories.n_users, device=mean.device))
        return self._finished(self.out_layer(self.hid_activation(self.h_item(rows) + mean)))

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the error of the restored histories, and the penalty on the weights."""
        user = interaction[self.USER_ID]
        history = self.histories.rows(user, distinct=True)
        output = at_least_float32(self.forward(history, user))
        if self.loss_type == "BCE":
            error = functional.binary_cross_entropy_with_logits(output, history, reduction="none")
        else:
            error = (self._finished(output) - history).square()
        return error.sum(dim=1).mean() + self._penalty()

    def _finished(self, output: Tensor) -> Tensor:
        assert self.out_activation is not None
        finished: Tensor = self.out_activation(output)
        return finished

    def _penalty(self) -> Tensor:
        weights = [self.h_user.weight, self.h_item.weight, self.out_layer.weight]
        penalty = torch.zeros((), device=weights[0].device)
        if self.reg_weight_1:
            penalty = penalty + self.reg_weight_1 * torch.stack([one.abs().sum() for one in weights]).sum()
        if self.reg_weight_2:
            penalty = penalty + self.reg_weight_2 / 2 * torch.stack([one.square().sum() for one in weights]).sum()
        return penalty

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the score of each row, `[rows]`."""
        user, item = interaction[self.USER_ID], interaction[self.ITEM_ID]
        scores = self._finished(self.forward(self.get_rating_matrix(user), user))
        return scores.gather(1, item.unsqueeze(1)).squeeze(1)

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the scores of all items, `[rows * n_items]`."""
        user = interaction[self.USER_ID]
        return self._finished(self.forward(self.get_rating_matrix(user), user)).view(-1)
