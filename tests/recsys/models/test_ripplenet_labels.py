"""RippleNet learns nothing from users who liked nothing."""

from typing import Any

import torch

from tests.recsys.models.tiny_graph import graph
from treadle.recsys import Config, Interaction, create_dataset, data_preparation, get_model

# "z" dislikes two items and likes none, so that no ring begins anywhere.
ROWS = [("a", "i0", 1.0), ("a", "i2", 0.0), ("b", "i4", 1.0), ("z", "i0", 0.0), ("z", "i2", 0.0), ("b", "i6", 1.0)]
SETTINGS: dict[str, Any] = {
    "embedding_size": 4,
    "n_memory": 3,
    "kg_weight": 0.4,
    "reg_weight": 0.01,
    "kg_unlinked_items": "keep",
    "train_neg_sample_args": None,
    "eval_args": {"split": {"RS": [1.0, 0.0, 0.0]}, "group_by": "none", "order": "RO", "mode": "labeled"},
    "metrics": ["AUC"],
    "valid_metric": "AUC",
}


def model_and_rows() -> tuple[Any, Interaction]:
    """Return a model in float64, and all rows."""
    config = Config("RippleNet", "tiny", config_dict=SETTINGS)
    table = dict(zip(("user_id", "item_id", "label"), map(list, zip(*ROWS, strict=True)), strict=True))
    train, _, _ = data_preparation(config, create_dataset(config, inter=table, **graph()))
    torch.manual_seed(0)
    return get_model("RippleNet")(config, train.dataset).double(), train.dataset.inter_feat


def test_rows_of_users_who_liked_nothing_do_not_count() -> None:
    model, rows = model_and_rows()
    liked = torch.tensor([rows["label"][rows["user_id"] == user].sum() > 0 for user in rows["user_id"]])
    assert liked.sum() == 4
    torch.testing.assert_close(model.calculate_loss(rows), model.calculate_loss(rows[liked]))


def test_a_batch_of_such_users_alone_moves_no_vector() -> None:
    model, rows = model_and_rows()
    liked = torch.tensor([rows["label"][rows["user_id"] == user].sum() > 0 for user in rows["user_id"]])
    loss = model.calculate_loss(rows[~liked])
    # What is left is the penalty on the transformation, which has no rows.
    torch.testing.assert_close(loss, 0.01 * model.transform_matrix.weight.square().sum())
    loss.backward()
    assert not model.entity_embedding.weight.grad.any()
    assert not model.relation_embedding.weight.grad.any()
