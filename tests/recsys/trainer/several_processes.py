"""A program that trains on as many processes as `torchrun` starts, and writes what each of them ends in.

Everything is in float64, so that several processes can be compared with one to the rounding of a differently ordered
sum. The batches do not divide evenly: the last has one row, so that one of two processes has none.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.recsys.suites import on_processes
from tests.recsys.suites.every_model import MODELS
from tests.recsys.trainer import trees
from tests.recsys.trainer.runs import interactions, make
from treadle.checkpoint import write_file
from treadle.parallel import Processes
from treadle.recsys import InputType, Interaction, Trainer
from treadle.recsys.models.general_recommender import BPR
from treadle.recsys.models.sequential_recommender import SASRec


class Alternating(Trainer):
    """The first example of the contract: two losses in turns, in a loop of your own."""

    def _train_epoch(self, train_data: Any, epoch_idx: int) -> float:  # type: ignore[override]
        self.model.train()
        total_loss = 0.0
        loss_func = self.model.calculate_loss1 if epoch_idx % 2 == 0 else self.model.calculate_loss2
        for interaction in train_data:
            interaction = interaction.to(self.device)
            self.optimizer.zero_grad()
            loss = loss_func(interaction)
            self._check_nan(loss)
            loss.backward()
            self.optimizer.step()
            total_loss += loss.item()
        return total_loss


class ByParts(Alternating):
    """Has an optimizer for the items besides, in a dict, made when the first epoch begins."""

    def _train_epoch(self, train_data: Any, epoch_idx: int) -> float:  # type: ignore[override]
        if not hasattr(self, "parts"):
            self.parts = {"items": torch.optim.Adagrad(self.model.item_embedding.parameters(), lr=0.05)}
        for interaction in train_data:
            self.parts["items"].zero_grad()
            self.model.calculate_loss2(interaction.to(self.device)).backward()
            self.parts["items"].step()
        return super()._train_epoch(train_data, epoch_idx)


class TwoLosses(BPR):
    """A model with two losses; the second reaches the items only."""

    def calculate_loss1(self, interaction: Interaction) -> torch.Tensor:
        return self.calculate_loss(interaction)

    def calculate_loss2(self, interaction: Interaction) -> torch.Tensor:
        return self.item_embedding(interaction[self.ITEM_ID]).square().mean()


class Points(BPR):
    """Tells chosen items from sampled ones, row by row."""

    input_type = InputType.POINTWISE

    def calculate_loss(self, interaction: Interaction) -> torch.Tensor:
        labels = interaction["label"].double()
        return torch.nn.functional.binary_cross_entropy_with_logits(self.predict(interaction), labels)


class InParts(TwoLosses):
    """Has both losses at once."""

    def calculate_loss(self, interaction: Interaction) -> Any:
        return BPR.calculate_loss(self, interaction), self.calculate_loss2(interaction)


class WithBuffer(BPR):
    """Scores with a buffer that is another one on each process."""

    def __init__(self, config: Any, dataset: Any) -> None:
        super().__init__(config, dataset)
        generator = torch.Generator().manual_seed(Processes("cpu").rank)
        self.register_buffer("popularity", torch.randn(self.n_items, generator=generator, dtype=torch.float64))

    def full_sort_predict(self, interaction: Interaction) -> torch.Tensor:
        scores = super().full_sort_predict(interaction).view(-1, self.n_items)
        return (scores + self.get_buffer("popularity")).reshape(-1)


BATCH = 59
"""Four batches of so many rows leave one row for the last."""
SEQUENTIAL: dict[str, Any] = {
    "hidden_size": 8,
    "inner_size": 8,
    "n_layers": 1,
    "n_heads": 2,
    "MAX_ITEM_LIST_LENGTH": 8,
    "hidden_dropout_prob": 0.0,
    "attn_dropout_prob": 0.0,
}
TRANSLATED: dict[str, Any] = {"embedding_size": 8, "use_st_gumbel": False}
SCENARIOS: dict[str, dict[str, Any]] = {
    "own_loop": {"model": TwoLosses, "kind": Alternating, "embedding_size": 8},
    "own_optimizer": {"model": TwoLosses, "kind": ByParts, "embedding_size": 8},
    "pairs": {"model": "BPR"},
    "points": {"model": Points, "embedding_size": 8},
    "sampled": {"model": "BPR", "eval_args": {"mode": "uni5"}},
    "positions": {"model": SASRec, "train_all_positions": True, "train_batch_size": 40, **SEQUENTIAL},
    "parts": {"model": InParts, "embedding_size": 8},
    "closed_form": {"model": "EASE"},
    "rows_of_adam": {"model": "BPR", "learner": "lazy_adam", "clip_grad_norm": 0.5},
    "rows_of_adagrad": {"model": "BPR", "learner": "row_adagrad"},
    "options": {
        "model": "BPR",
        "learner": "sgd",
        "gradient_accumulation_steps": 2,
        "clip_grad_norm": 0.5,
        "gradient_clip_value": 0.02,
        "max_steps": 5,
        "scheduler": {"name": "ExponentialLR", "gamma": 0.7},
    },
    "joint": {"model": "CFKG", "embedding_size": 8},
    "turns": {"model": "KTUP", "train_rec_step": 1, "train_kg_step": 1, "align_weight": 0.0, **TRANSLATED},
    "graph_pass": {"model": "KGAT", "kg_embedding_size": 8, "layers": [8], "embedding_size": 8, "mess_dropout": 0.0},
    "interval": {"model": "MKR", "embedding_size": 8, "kge_interval": 2, "kge_learning_rate": 0.01},
}


def rows() -> dict[str, list[Any]]:
    """Return interactions of which the training part is one row more than whole batches."""
    table = interactions()
    return {name: column[:-3] for name, column in table.items()}


def outcome(folder: Path, name: str) -> dict[str, Any]:
    """Train a scenario and return what it ends in."""
    given = {"train_batch_size": BATCH, "learning_rate": 0.02, "epochs": 3, **SCENARIOS[name]}
    model, kind = given.pop("model"), given.pop("kind", None)
    run = make(folder, model, kind=kind, table=rows(), double=True, **given)
    score, result = run.fit()
    test = run.trainer.evaluate(run.test)
    return {
        "weights": {key: value.double() for key, value in run.model.state_dict().items()},
        "score": score,
        "valid": result.exact,
        "test": test.exact,
        "losses": list(run.trainer.train_loss_dict.values()),
        "rows": run.train.sample_size,
    }


def resumed(folder: Path, name: str) -> dict[str, Any]:
    """Train for two epochs, then go on from the file to the third."""
    first = make(folder, "BPR", double=True, epochs=2, learning_rate=0.02, table=rows())
    first.fit()
    second = make(folder, "BPR", double=True, epochs=3, learning_rate=0.02, table=rows())
    second.trainer.resume_checkpoint(first.trainer.saved_model_file)
    second.fit()
    whole = make(folder, "BPR", double=True, epochs=3, learning_rate=0.02, table=rows())
    whole.fit()
    same = torch.equal(second.model.user_embedding.weight, whole.model.user_embedding.weight)
    return {"same": same, "files": len(list((folder / "saved").glob("*.pth")))}


def buffers_apart(folder: Path, name: str) -> dict[str, Any]:
    """Evaluate a model that nothing has trained yet, whose buffers differ, by both verbs."""
    first = make(folder, WithBuffer, double=True, embedding_size=8, table=rows())
    second = make(folder, WithBuffer, double=True, embedding_size=8, table=rows())
    return {
        "evaluated": first.trainer.evaluate(first.test, load_best_model=False).exact,
        "in_detail": second.trainer.evaluate_in_detail(second.test).metrics,
    }


PROGRAMS: dict[str, Callable[[Path, str], dict[str, Any]]] = {
    **dict.fromkeys(SCENARIOS, outcome),
    "resumed": resumed,
    "buffers_apart": buffers_apart,
    **dict.fromkeys(trees.LIBRARIES, trees.outcome),
}


def main() -> None:
    processes = Processes("cpu")
    folder = Path(sys.argv[1])
    for name, program in PROGRAMS.items():
        write_file(folder / f"{name}.rank_{processes.rank}", program(folder / name, name))
    for name in MODELS:
        write_file(folder / f"model {name}.rank_{processes.rank}", on_processes.outcome(folder / f"model {name}", name))


if __name__ == "__main__":
    main()
