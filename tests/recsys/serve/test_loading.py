"""The same answers from a trainer, a file of a model and the folder of a run."""

from pathlib import Path

import pytest

from tests.recsys.trainer.runs import interactions, make
from treadle.errors import CheckpointError
from treadle.recsys import create_dataset, load_recommender


def test_the_folder_of_a_run_answers_like_its_trainer(tmp_path: Path) -> None:
    run = make(tmp_path, epochs=1)
    run.fit()
    given = {"k": 4, "history": ["i1", "i2"], "explain": 1}
    wanted = run.trainer.recommend(**given)
    file = Path(run.trainer.saved_model_file)
    for place in (file, file.with_suffix("")):
        data = create_dataset(run.trainer.config, inter=interactions())
        found = load_recommender(place, dataset=data).recommend(**given)
        assert found["history 1"] == wanted["history 1"]
        assert found.because == wanted.because


def test_a_folder_without_a_model_or_with_several_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{tmp_path} holds no model: there is no .pth file in it, and no"):
        load_recommender(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.pth").touch()
    with pytest.raises(CheckpointError, match=r"holds 2 models, a\.pth among them; name one of the files"):
        load_recommender(tmp_path)
