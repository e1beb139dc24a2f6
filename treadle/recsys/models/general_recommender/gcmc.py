"""Graph convolutional matrix completion."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import GeneralRecommender
from treadle.recsys.models.graph import Graph
from treadle.recsys.models.loss import at_least_float32
from treadle.recsys.models.settings import choice, share, whole


class GCMC(GeneralRecommender):
    """An encoder that passes messages between users and items once, and a decoder that compares the two.

    van den Berg, Kipf and Welling, "Graph convolutional matrix completion", 2017. With implicit feedback there is one
    kind of edge to pass messages along, and two classes to tell apart, chosen and not. The score is the probability of
    the former. Nodes have no features but their ids; in training, all messages of a node are dropped together.

    `accum` and `sparse_feature` are RecBole's. With one kind of edge, "sum" and "stack" are the same; and the matrix of
    one-hot features, sparse or dense, is never made.
    """

    input_type = InputType.PAIRWISE

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        choice(config, "accum", ("stack", "sum"))
        self.num_classes = whole(config, "class_num", 2)
        self.dropout_prob = share(config, "dropout_prob")
        hidden, size = whole(config, "gcn_output_dim"), whole(config, "embedding_size")
        bases = whole(config, "num_basis_functions")
        self.graph = Graph.of(dataset)
        self.message_weight = nn.Parameter(torch.empty(self.graph.n_nodes, hidden))
        self.dense = nn.Linear(hidden, size, bias=False)
        self.basis = nn.Parameter(torch.empty(bases, size, size))
        self.basis_weight = nn.Parameter(torch.empty(bases, self.num_classes))
        nn.init.xavier_normal_(self.message_weight)
        nn.init.xavier_normal_(self.dense.weight)
        for matrix in torch.unbind(self.basis.detach()):
            nn.init.orthogonal_(matrix)
        nn.init.xavier_uniform_(self.basis_weight)
        self.loss_function = nn.CrossEntropyLoss()

    def encode(self) -> tuple[Tensor, Tensor]:
        """Return the embeddings of users, and those of items."""
        messages: Tensor = self.message_weight
        if self.training and self.dropout_prob:
            kept = functional.dropout(messages.new_ones(len(messages), 1), self.dropout_prob)
            messages = messages * kept
        hidden = self.graph(messages).relu()
        hidden = functional.dropout(hidden, self.dropout_prob, training=self.training)
        return self.graph.split(self.dense(hidden))

    def user_vectors(self) -> Tensor:
        """Return what the encoder makes of each user id."""
        return self.encode()[0]

    def item_vectors(self) -> Tensor:
        """Return what the encoder makes of each item id."""
        return self.encode()[1]

    def class_matrices(self) -> Tensor:
        """Return the matrix by which each class compares users with items, `[classes, size, size]`."""
        return torch.einsum("bc,bij->cij", self.basis_weight, self.basis)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the logits of all classes of each pair of embeddings, `[rows, classes]`."""
        return torch.einsum("ri,cij,rj->rc", users, self.class_matrices(), items)

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the cross-entropy of the class of chosen and sampled items."""
        users, items = self.encode()
        user, negative = interaction[self.USER_ID], interaction[self.NEG_ITEM_ID].reshape(len(interaction), -1)
        others = user.unsqueeze(1).expand_as(negative).reshape(-1)
        asked = users.index_select(0, torch.cat([user, others]))
        given = items.index_select(0, torch.cat([interaction[self.ITEM_ID], negative.reshape(-1)]))
        logits = at_least_float32(self.forward(asked, given))
        chosen = torch.arange(len(logits), device=logits.device) < len(user)
        loss: Tensor = self.loss_function(logits, chosen.long())
        return loss

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the probability that each row was chosen, `[rows]`."""
        users, items = self.remembered(self.encode)
        logits = self.forward(users[interaction[self.USER_ID]], items[interaction[self.ITEM_ID]])
        return at_least_float32(logits).softmax(dim=-1)[:, 1]

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the probabilities that all items are chosen, `[rows * n_items]`."""
        users, items = self.remembered(self.encode)
        compared = torch.einsum("ri,cij->crj", users[interaction[self.USER_ID]], self.class_matrices())
        logits = torch.matmul(compared, items.T)
        if self.num_classes == 2:
            return at_least_float32(logits[1] - logits[0]).sigmoid().view(-1)
        return at_least_float32(logits).softmax(dim=0)[1].view(-1)
