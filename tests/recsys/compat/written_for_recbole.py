"""Files as RecBole's users write them: their own text, run by the tests through the bridge."""

import textwrap
from pathlib import Path

FILES = {
    "my_general.py": '''
        """A general model, and imports from everywhere that such a file imports from."""

        import numpy as np
        import scipy.sparse as sp
        import torch
        import torch.nn as nn

        from recbole.data.interaction import Interaction
        from recbole.model.abstract_recommender import GeneralRecommender
        from recbole.model.init import xavier_normal_initialization
        from recbole.model.loss import BPRLoss, EmbLoss
        from recbole.utils import InputType, set_color
        from recbole.utils.enum_type import ModelType


        class MyGeneral(GeneralRecommender):
            input_type = InputType.PAIRWISE

            def __init__(self, config, dataset):
                super(MyGeneral, self).__init__(config, dataset)
                self.size = config["embedding_size"]
                self.interactions = dataset.inter_matrix(form="coo").astype(np.float32)
                self.users = nn.Embedding(self.n_users, self.size)
                self.items = nn.Embedding(self.n_items, self.size)
                self.loss, self.penalty = BPRLoss(), EmbLoss()
                self.offsets = np.array((0, self.n_users), dtype=np.long)
                matrix = sp.dok_matrix((2, 2), dtype=np.float32)
                matrix._update({(0, 1): 3.0})
                self.entry = float(matrix.tocoo().data[0])
                self.apply(xavier_normal_initialization)

            def calculate_loss(self, interaction):
                user = self.users(interaction[self.USER_ID])
                positive = self.items(interaction[self.ITEM_ID])
                negative = self.items(interaction[self.NEG_ITEM_ID])
                ranked = self.loss((user * positive).sum(dim=1), (user * negative).sum(dim=1))
                return ranked, 1e-4 * self.penalty(user, positive, negative)

            def predict(self, interaction):
                user, item = interaction[self.USER_ID], interaction[self.ITEM_ID]
                return (self.users(user) * self.items(item)).sum(dim=1)

            def full_sort_predict(self, interaction):
                return (self.users(interaction[self.USER_ID]) @ self.items.weight.T).view(-1)
    ''',
    "my_neighbour.py": '''
        """A model made from one of RecBole's, with the help of a file beside it."""

        from recbole.model.general_recommender.bpr import BPR
        from scaling import SCALE


        class MyNeighbour(BPR):
            def full_sort_predict(self, interaction):
                return SCALE * super().full_sort_predict(interaction)
    ''',
    "scaling.py": "SCALE = 2.0\n",
    "my_sequence.py": """
        import torch
        from torch import nn

        from recbole.model.abstract_recommender import SequentialRecommender
        from recbole.model.layers import TransformerEncoder
        from recbole.model.loss import BPRLoss


        class MySequence(SequentialRecommender):
            def __init__(self, config, dataset):
                super().__init__(config, dataset)
                self.loss_type = config["loss_type"]
                self.embedding = nn.Embedding(self.n_items, 8, padding_idx=0)
                self.encoder = TransformerEncoder(n_layers=1, n_heads=2, hidden_size=8, inner_size=16)
                self.loss = nn.CrossEntropyLoss() if self.loss_type == "CE" else BPRLoss()

            def forward(self, item_seq, item_seq_len):
                mask = self.get_attention_mask(item_seq)
                encoded = self.encoder(self.embedding(item_seq), mask, output_all_encoded_layers=True)[-1]
                return self.gather_indexes(encoded, item_seq_len - 1)

            def calculate_loss(self, interaction):
                output = self.forward(interaction[self.ITEM_SEQ], interaction[self.ITEM_SEQ_LEN])
                if self.loss_type == "CE":
                    return self.loss(output @ self.embedding.weight.T, interaction[self.POS_ITEM_ID])
                positive = self.embedding(interaction[self.POS_ITEM_ID])
                negative = self.embedding(interaction[self.NEG_ITEM_ID])
                return self.loss((output * positive).sum(-1), (output * negative).sum(-1))

            def predict(self, interaction):
                output = self.forward(interaction[self.ITEM_SEQ], interaction[self.ITEM_SEQ_LEN])
                return (output * self.embedding(interaction[self.ITEM_ID])).sum(dim=1)

            def full_sort_predict(self, interaction):
                output = self.forward(interaction[self.ITEM_SEQ], interaction[self.ITEM_SEQ_LEN])
                return output @ self.embedding.weight.T
    """,
    "my_clicks.py": """
        from torch import nn

        from recbole.model.abstract_recommender import ContextRecommender
        from recbole.model.layers import MLPLayers


        class MyClicks(ContextRecommender):
            def __init__(self, config, dataset):
                super().__init__(config, dataset)
                self.layers = MLPLayers([self.embedding_size * self.num_feature_field, 4, 1])
                self.sigmoid, self.loss = nn.Sigmoid(), nn.BCEWithLogitsLoss()

            def forward(self, interaction):
                embedded = self.concat_embed_input_fields(interaction)
                return self.layers(embedded.flatten(1)).squeeze(-1)

            def calculate_loss(self, interaction):
                return self.loss(self.forward(interaction), interaction[self.LABEL])

            def predict(self, interaction):
                return self.sigmoid(self.forward(interaction))
    """,
    "my_graph.py": """
        import torch
        import torch.nn as nn

        from recbole.model.abstract_recommender import KnowledgeRecommender
        from recbole.model.loss import BPRLoss
        from recbole.utils import InputType


        class MyGraph(KnowledgeRecommender):
            input_type = InputType.PAIRWISE

            def __init__(self, config, dataset):
                super().__init__(config, dataset)
                self.users = nn.Embedding(self.n_users, 8)
                self.entities = nn.Embedding(self.n_entities, 8)
                self.relations = nn.Embedding(self.n_relations, 8)
                self.loss = BPRLoss()

            def calculate_loss(self, interaction):
                user = self.users(interaction[self.USER_ID])
                liked = self.entities(interaction[self.ITEM_ID])
                other = self.entities(interaction[self.NEG_ITEM_ID])
                ranked = self.loss((user * liked).sum(-1), (user * other).sum(-1))
                head = self.entities(interaction[self.HEAD_ENTITY_ID])
                head = head + self.relations(interaction[self.RELATION_ID])
                tail = self.entities(interaction[self.TAIL_ENTITY_ID])
                wrong = self.entities(interaction[self.NEG_TAIL_ENTITY_ID])
                return ranked, self.loss((head * tail).sum(-1), (head * wrong).sum(-1))

            def predict(self, interaction):
                return (self.users(interaction[self.USER_ID]) * self.entities(interaction[self.ITEM_ID])).sum(-1)

            def full_sort_predict(self, interaction):
                return self.users(interaction[self.USER_ID]) @ self.entities.weight[: self.n_items].T
    """,
}


def write(folder: Path, name: str) -> Path:
    """Write one of the files into a folder, with those that it imports beside it, and return its path."""
    for one in (name, "scaling.py"):
        (folder / one).write_text(textwrap.dedent(FILES[one]), encoding="utf-8")
    return folder / name


PACKAGE = {
    "__init__.py": "raise RuntimeError('the package itself is never run')\n",
    "model/__init__.py": "",
    "model/abstract_recommender.py": '''
        """A stand-in for the models' side of RecBole's package: enough for one model."""

        import torch.nn as nn

        from recbole.utils import ModelType


        class GeneralRecommender(nn.Module):
            type = ModelType.GENERAL
            of_the_package = True

            def __init__(self, config, dataset):
                super().__init__()
                self.USER_ID, self.ITEM_ID = config["USER_ID_FIELD"], config["ITEM_ID_FIELD"]
                self.NEG_ITEM_ID = config["NEG_PREFIX"] + self.ITEM_ID
                self.n_users, self.n_items = dataset.num(self.USER_ID), dataset.num(self.ITEM_ID)
    ''',
    "model/general_recommender/__init__.py": (
        "from recbole.model.general_recommender.tiny import Tiny\n"
        "from recbole.model.general_recommender.needy import Needy\n"
    ),
    "model/general_recommender/tiny.py": """
        import torch.nn as nn

        from recbole.model.abstract_recommender import GeneralRecommender
        from recbole.utils import InputType


        class Tiny(GeneralRecommender):
            input_type = InputType.PAIRWISE

            def __init__(self, config, dataset):
                super().__init__(config, dataset)
                self.users = nn.Embedding(self.n_users, config["tiny_size"])
                self.items = nn.Embedding(self.n_items, config["tiny_size"])

            def calculate_loss(self, interaction):
                user = self.users(interaction[self.USER_ID])
                items = self.items(interaction[self.ITEM_ID]) - self.items(interaction[self.NEG_ITEM_ID])
                return nn.functional.softplus(-(user * items).sum(dim=1)).mean()

            def predict(self, interaction):
                return (self.users(interaction[self.USER_ID]) * self.items(interaction[self.ITEM_ID])).sum(dim=1)

            def full_sort_predict(self, interaction):
                return self.users(interaction[self.USER_ID]) @ self.items.weight.T
    """,
    "model/general_recommender/needy.py": "import a_package_that_nobody_has\n\nclass Needy: ...\n",
    "model/exlib_recommender/__init__.py": "from recbole.model.exlib_recommender.lightgbm import LightGBM\n",
    "model/exlib_recommender/lightgbm.py": "raise RuntimeError('what holds a booster alone is never run')\n",
    "properties/model/Tiny.yaml": "tiny_size: 3\n",
}


def write_package(folder: Path) -> Path:
    """Write a small package of RecBole's shape into a folder, and return the package."""
    for name, text in PACKAGE.items():
        file = folder / "recbole" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text), encoding="utf-8")
    return folder / "recbole"
