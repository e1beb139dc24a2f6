"""What every recommender is, by the names that RecBole's models use."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.loop.verbs import refuse_misspelt
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import FeatureSource, InputType, KGDataLoaderState, ModelType
from treadle.recsys.models.histories import Histories
from treadle.recsys.models.layers.fields import FieldEmbeddings, FMFirstOrderLinear

Value = TypeVar("Value")
USERS_AT_ONCE = 1024
"""Of how many users the histories are rows at the same time, where all of them are encoded."""
MASKED = -10000.0
"""What is added to the attention of positions that must not be looked at: finite in half precision, too."""


VERBS = ("calculate_loss", "full_sort_predict", "start_epoch", "other_parameter", "load_other_parameter")
"""The methods of a recommender that users override, besides `forward` and `predict`."""


def _check_arguments(model: nn.Module, config: Any, dataset: Any) -> None:
    if type(config) is dict or hasattr(config, "field2type") or not hasattr(dataset, "num"):
        name = type(model).__name__
        raise ConfigError(
            f"{name}({type(config).__name__}, {type(dataset).__name__}): a model takes a Config, and a data set behind "
            f"it: {name}(config, train_data.dataset)"
        )


class AbstractRecommender(nn.Module):
    """A model with a loss to train on, and scores.

    A subclass says with `type` what it recommends from, and with `input_type` what its training batches look like (or
    leaves that to `loss_type`), and defines `calculate_loss`, `predict` and, if it can score all items at once,
    `full_sort_predict`.

    Attributes:
        other_parameter_name: Attributes beside parameters and buffers that belong to the state of the model.
        no_vectors: Why the model has no vectors of users and items, if that is what it is.
    """

    type: ModelType  # type: ignore[assignment]  # RecBole's name, and also a cast of modules that nobody uses
    input_type: InputType
    other_parameter_name: Sequence[str] = ()
    no_vectors = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_misspelt(cls, VERBS)

    def __init__(self) -> None:
        super().__init__()
        self.logger = logging.getLogger(type(self).__module__)
        self._remembered: tuple[Any, Any] | None = None

    def calculate_loss(self, interaction: Interaction) -> Any:
        """Return the loss of a training batch: a scalar, or a tuple of scalars to be added up."""
        raise NotImplementedError(f"{type(self).__name__} does not define calculate_loss")

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the score of each row's user and item, `[rows]`."""
        raise NotImplementedError(f"{type(self).__name__} does not define predict")

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the scores of all items for each row's user, `[rows * n_items]` or `[rows, n_items]`.

        A model without it is evaluated with `predict`, on every pair.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define full_sort_predict")

    def start_epoch(self, epoch: int) -> None:
        """Get ready for an epoch of training, whose number is given; by default there is nothing to do.

        The trainer calls it before each epoch, and after a resume with the epoch that it resumes in. What it draws must
        depend on the number, not on what was drawn before.
        """

    def other_parameter(self) -> dict[str, Any]:
        """Return the attributes that `other_parameter_name` names."""
        return {name: getattr(self, name) for name in self.other_parameter_name}

    def load_other_parameter(self, para: Mapping[str, Any] | None) -> None:
        """Set the attributes that `other_parameter` returned."""
        for name, value in (para or {}).items():
            setattr(self, name, value)

    def remembered(self, calculate: Callable[[], Value]) -> Value:
        """Return what `calculate` returns, and while nothing changes return it again without calculating.

        For what all batches of an evaluation share, such as propagated embeddings. In training, and wherever gradients
        are wanted, it always calculates.
        """
        if self.training or torch.is_grad_enabled():
            return calculate()
        state = tuple((one.data_ptr(), one._version) for one in self.parameters())
        if self._remembered is None or self._remembered[0] != state:
            self._remembered = (state, calculate())
        found: Value = self._remembered[1]
        return found

    def train(self, mode: bool = True) -> Any:
        """Go to training, or to evaluation."""
        # A replayed graph changes parameters without a trace; but before and after it somebody comes by here.
        self._remembered = None
        return super().train(mode)

    def __str__(self) -> str:
        trained = sum(one.numel() for one in self.parameters() if one.requires_grad)
        return f"{super().__str__()}\nTrainable parameters: {trained}"


class _UserItemRecommender(AbstractRecommender):
    """What all models of users and items take from their settings."""

    type: ModelType  # said again for those made from this: torch has a cast of that name

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__()
        _check_arguments(self, config, dataset)
        self.USER_ID = str(config["USER_ID_FIELD"])
        self.ITEM_ID = str(config["ITEM_ID_FIELD"])
        self.NEG_ITEM_ID = f"{config['NEG_PREFIX']}{self.ITEM_ID}"
        self.device = config["device"]


class GeneralRecommender(_UserItemRecommender):
    """A model of users and items.

    Attributes:
        USER_ID, ITEM_ID, NEG_ITEM_ID: The columns with users, items and sampled items.
        n_users, n_items: How many ids there are, padding included.
        device: Where the settings want the model.
    """

    type = ModelType.GENERAL

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.n_users = dataset.num(self.USER_ID)
        self.n_items = dataset.num(self.ITEM_ID)


class AutoEncoderMixin:
    """What autoencoders of whole histories share: the history of each user, as a row of all items."""

    histories: Histories
    n_users: int
    n_items: int

    def build_history_items(self, dataset: Dataset, value_field: str | None = None) -> None:
        """Keep the history of each user.

        Args:
            dataset: The data for training.
            value_field: The field whose numbers stand in a row; 1 without it.
        """
        self.histories = Histories.of(dataset, value_field)

    build_histroy_items = build_history_items  # RecBole's spelling, which models that move over use
    """The same, by RecBole's spelling."""

    def encode_all_users(self, encode: Callable[[Tensor], Tensor]) -> Tensor:
        """Return what `encode` makes of the ids of users, `[users, size]`, for all of them, but some at a time."""
        users = torch.arange(self.n_users, device=self.histories.items.device)
        return torch.cat([encode(some) for some in torch.split(users, USERS_AT_ONCE)])

    def get_rating_matrix(self, user: Tensor) -> Tensor:
        """Return the history of each user as a row `[users, n_items]`, 0 for items that are not in it."""
        return self.histories.rows(user)


class SequentialRecommender(_UserItemRecommender):
    """A model of what comes next in a sequence.

    Attributes:
        USER_ID, ITEM_ID, NEG_ITEM_ID: The columns with users, next items and sampled items; `POS_ITEM_ID` is `ITEM_ID`.
        ITEM_SEQ, ITEM_SEQ_LEN: The columns with the items before, and how many they are.
        POS_ITEM_SEQ, NEG_ITEM_SEQ: With `train_all_positions`, the columns with the item after each position, and with
            sampled ones.
        max_seq_length: The most items of a sequence.
        n_items: How many item ids there are, padding included.
        device: Where the settings want the model.
    """

    type = ModelType.SEQUENTIAL

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.ITEM_SEQ = f"{self.ITEM_ID}{config['LIST_SUFFIX']}"
        self.ITEM_SEQ_LEN = str(config["ITEM_LIST_LENGTH_FIELD"])
        self.POS_ITEM_ID = self.ITEM_ID
        self.POS_ITEM_SEQ = f"pos_{self.ITEM_SEQ}"
        self.NEG_ITEM_SEQ = f"{config['NEG_PREFIX']}{self.ITEM_SEQ}"
        self.max_seq_length = int(config["MAX_ITEM_LIST_LENGTH"])
        self.n_items = dataset.num(self.ITEM_ID)

    def gather_indexes(self, output: Tensor, gather_index: Tensor) -> Tensor:
        """Return the vector at one position of each sequence: of `[rows, length, size]`, `[rows, size]`."""
        index = gather_index.view(-1, 1, 1).expand(-1, 1, output.shape[-1])
        return output.gather(1, index).squeeze(1)

    def get_attention_mask(self, item_seq: Tensor, bidirectional: bool = False) -> Tensor:
        """Return what to add to attention scores: 0 where a position may look, -10000 elsewhere.

        Args:
            item_seq: The items, 0 for padding.
            bidirectional: Whether a position may look at later ones, too.

        Returns:
            `[rows, 1, 1, length]` if so, otherwise `[rows, 1, length, length]`.
        """
        seen = (item_seq != 0).unsqueeze(1).unsqueeze(2)
        if not bidirectional:
            seen = torch.tril(seen.expand(-1, -1, item_seq.shape[-1], -1))
        return torch.where(seen, 0.0, MASKED)


class KnowledgeRecommender(_UserItemRecommender):
    """A model of users, items and a knowledge graph.

    Attributes:
        USER_ID, ITEM_ID, NEG_ITEM_ID: The columns with users, items and sampled items.
        ENTITY_ID, RELATION_ID, HEAD_ENTITY_ID, TAIL_ENTITY_ID, NEG_TAIL_ENTITY_ID: The columns of the graph.
        n_users, n_items, n_entities, n_relations: How many ids there are, padding included. The ids of items are the
            first of those of entities, and the last relation is that of users and items.
        batch_state: What `calculate_loss` is given: interactions with triples, or interactions alone.
        device: Where the settings want the model.
    """

    type = ModelType.KNOWLEDGE
    batch_state = KGDataLoaderState.RSKG

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.ENTITY_ID = str(config["ENTITY_ID_FIELD"])
        self.RELATION_ID = str(config["RELATION_ID_FIELD"])
        self.HEAD_ENTITY_ID = str(config["HEAD_ENTITY_ID_FIELD"])
        self.TAIL_ENTITY_ID = str(config["TAIL_ENTITY_ID_FIELD"])
        self.NEG_TAIL_ENTITY_ID = f"{config['NEG_PREFIX']}{self.TAIL_ENTITY_ID}"
        self.n_users = dataset.num(self.USER_ID)
        self.n_items = dataset.num(self.ITEM_ID)
        self.n_entities = dataset.num(self.ENTITY_ID)
        self.n_relations = dataset.num(self.RELATION_ID)


class ContextRecommender(FieldEmbeddings, _UserItemRecommender):
    """A model of rows of fields with a label: an embedding for each field, and a linear part.

    Number fields are embedded if `numerical_features` names them. With `double_tower`, the fields of users come before
    those of items, and other fields are left out; how many of each type are embedded is in `user_token_field_num`,
    `user_token_seq_field_num`, `user_float_field_num`, and the same of items.

    Attributes:
        USER_ID, ITEM_ID: The columns with users and items.
        LABEL: The column with the label.
        embedding_size: The length of an embedding.
        field_names: The fields that are embedded, of all types.
        num_feature_field: How many they are.
        first_order_linear: The linear part.
        device: Where the settings want the model.
    """

    type = ModelType.CONTEXT
    input_type = InputType.POINTWISE

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.LABEL = str(config["LABEL_FIELD"])
        self.embedding_size = int(config["embedding_size"])
        self.numerical_features = list(config["numerical_features"] or ())
        self.double_tower = bool(config["double_tower"])
        if self.double_tower:
            self.user_field_names = dataset.fields(source=[FeatureSource.USER, FeatureSource.USER_ID])
            self.item_field_names = dataset.fields(source=[FeatureSource.ITEM, FeatureSource.ITEM_ID])
            names = self.user_field_names + self.item_field_names
        else:
            names = None
        self.build_field_embeddings(config, dataset, self.embedding_size, names)
        if self.double_tower:
            self._count_fields()
        self.first_order_linear = FMFirstOrderLinear(config, dataset)

    def user_vectors(self) -> Tensor | None:
        """Return the embedding of each user id; None if they are no field of the rows."""
        return self.field_vectors(self.USER_ID)

    def item_vectors(self) -> Tensor | None:
        """Return the embedding of each item id, without those of its other fields; None if they are no field."""
        return self.field_vectors(self.ITEM_ID)

    def _count_fields(self) -> None:
        kinds = {
            "token": self.token_field_names,
            "token_seq": self.token_seq_field_names,
            "float": self.float_field_names + self.float_seq_field_names,
        }
        for owner, owned in (("user", self.user_field_names), ("item", self.item_field_names)):
            for kind, names in kinds.items():
                setattr(self, f"{owner}_{kind}_field_num", sum(name in owned for name in names))
