"""A recommender from what a training left: the file of a model, or the folder of a run."""

import os
from hashlib import blake2b
from pathlib import Path
from typing import Any

from treadle.errors import CheckpointError
from treadle.recsys.quick_start import load_data_and_model
from treadle.recsys.serve.answers import Answers
from treadle.recsys.serve.exported import FACTS, ExportedRecommender
from treadle.recsys.serve.recommender import Recommender


def load_recommender(path: str | os.PathLike[str], *, model: Any = None, dataset: Any = None) -> Answers:
    """Return what recommends with the model of a run, or with an export.

    Args:
        path: The file of a trained model, or the folder of its run, or what `export_recommender` wrote.
        model: The class of the model, if it is not registered.
        dataset: The data set, if it was made of tables that no file holds.

    Raises:
        CheckpointError: There is no model.
        ConfigError: There is no model of that name.
        DataError: The data is not there, or has other users or items than the model.
    """
    if (Path(path) / FACTS).is_file() or Path(path).name == FACTS:
        return ExportedRecommender(Path(path).parent if Path(path).name == FACTS else path)
    config, made, _, train_data, _, _ = load_data_and_model(model_file_of(path), model=model, dataset=dataset)
    return Recommender(made, train_data.dataset, config["device"])


def model_file_of(path: str | os.PathLike[str]) -> Path:
    """Return the file of the model of a run, by itself or by the folder of the run.

    Raises:
        CheckpointError: There is none.
    """
    place = Path(path)
    if not place.is_dir():
        return place
    inside = sorted(place.glob("*.pth"))
    beside = place.with_name(place.name + ".pth")
    if len(inside) > 1:
        raise CheckpointError(f"{place} holds {len(inside)} models, {inside[0].name} among them; name one of the files")
    found = inside[0] if inside else beside
    if not found.is_file():
        raise CheckpointError(
            f"{place} holds no model: there is no .pth file in it, and no {beside.name} beside it; a training writes "
            "one when it has evaluated for the first time"
        )
    return found


def checksum_of(path: str | os.PathLike[str]) -> str:
    """Return what tells the model of a file or folder from others."""
    folder = Path(path)
    exported = (folder / FACTS).is_file()
    digest = blake2b(digest_size=16)
    for name in sorted(folder.iterdir()) if exported else [model_file_of(path)]:
        with open(name, "rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
    return digest.hexdigest()
