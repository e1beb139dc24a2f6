"""Files written for RecBole, and models of its package, run here with their source unchanged."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from tests.recsys.compat.written_for_recbole import write, write_package
from tests.recsys.data.small import write_table
from tests.recsys.trainer.runs import graph, interactions, settings
from treadle import recsys
from treadle.errors import ConfigError, MissingDependencyError
from treadle.recsys import Config, compat, create_dataset, data_preparation, get_model, get_trainer, init_seed
from treadle.recsys.compat.data import ListedDataset
from treadle.recsys.compat.name_table import MODEL_SIDE, SYSTEM
from treadle.recsys.compat.package import VARIABLE
from treadle.recsys.data.sequential_dataset import DIENDataset, SequentialDataset
from treadle.recsys.enums import InputType, ModelType
from treadle.recsys.quick_start import load_data_and_model


@pytest.fixture(autouse=True)
def without_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def trained(folder: Path, model: Any, *, tables: dict[str, Any] | None = None, **given: Any) -> Any:
    """Train a model for two epochs on the small data, and return its trainer and its metrics on the test part."""
    config = Config(model, "toy", config_dict=settings(folder, **{"epochs": 2, **given}))
    data = create_dataset(config, inter=interactions(), **(tables or {}))
    train, valid, test = data_preparation(config, data)
    init_seed(2020, True)
    trainer = get_trainer(config, config.model_class(config, train.dataset))
    trainer.fit(train, valid, verbose=False)
    return trainer, trainer.evaluate(test)


def test_a_general_model_of_a_file_trains_and_is_evaluated(tmp_path: Path) -> None:
    model = compat.load_model(write(tmp_path, "my_general.py"), "MyGeneral")
    trainer, result = trained(tmp_path, model, embedding_size=8, epochs=3)
    assert model.input_type is InputType.PAIRWISE
    assert model.type is ModelType.GENERAL
    assert set(result) == {"recall@5", "ndcg@5", "mrr@5"}
    # Two losses were returned, and both are reported.
    assert trainer.model.entry == 3.0
    assert trainer.model.offsets.tolist() == [0, 25]
    assert trainer.train_loss_dict[2] < trainer.train_loss_dict[0]


def test_nothing_of_recbole_stays_in_the_process(tmp_path: Path) -> None:
    before, finders = set(sys.modules), list(sys.meta_path)
    compat.load_model(write(tmp_path, "my_general.py"))
    assert [name for name in set(sys.modules) - before if name.startswith("recbole")] == []
    assert sys.meta_path == finders
    assert str(tmp_path) not in sys.path


def test_a_package_that_was_imported_before_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    own = type(sys)("recbole")
    monkeypatch.setitem(sys.modules, "recbole", own)
    with compat.recbole_names():
        import recbole

        assert recbole is not own
    assert sys.modules["recbole"] is own


def test_a_model_made_from_another_finds_what_lies_beside_it(tmp_path: Path) -> None:
    model = compat.load_model(write(tmp_path, "my_neighbour.py"))
    trainer, _ = trained(tmp_path, model, embedding_size=8)
    # BPR is Treadle's own here, and so are its settings.
    assert model.__mro__[1] is get_model("BPR")
    assert trainer.config["embedding_size"] == 8
    assert Config(model, "toy")["embedding_size"] == 64


@pytest.mark.parametrize("loss_type", ["CE", "BPR"])
def test_a_sequential_model_of_a_file_trains_and_is_evaluated(tmp_path: Path, loss_type: str) -> None:
    model = compat.load_model(write(tmp_path, "my_sequence.py"), "MySequence")
    _, result = trained(tmp_path, model, loss_type=loss_type, MAX_ITEM_LIST_LENGTH=6)
    assert 0 <= result["ndcg@5"] <= 1


def test_a_context_aware_model_of_a_file_trains_and_is_evaluated(tmp_path: Path) -> None:
    model = compat.load_model(write(tmp_path, "my_clicks.py"), "MyClicks")
    given = {"threshold": {"rating": 3}, "metrics": ["AUC", "LogLoss"], "valid_metric": "AUC", "embedding_size": 4}
    _, result = trained(tmp_path, model, **given)
    assert set(result) == {"auc", "logloss"}


def test_a_knowledge_aware_model_of_a_file_trains_and_is_evaluated(tmp_path: Path) -> None:
    model = compat.load_model(write(tmp_path, "my_graph.py"), "MyGraph")
    trainer, result = trained(tmp_path, model, tables=graph())
    assert type(trainer).__name__ == "KGTrainer"
    assert 0 <= result["ndcg@5"] <= 1


def test_models_that_recbole_gives_users_get_users(tmp_path: Path) -> None:
    text = write(tmp_path, "my_general.py").read_text()
    (tmp_path / "mine.py").write_text(text.replace("MyGeneral", "MultiVAE"))
    model = compat.load_model(tmp_path / "mine.py")
    assert Config(model, "toy")["MODEL_INPUT_TYPE"] is InputType.USERWISE


@pytest.mark.parametrize(("name", "dataset"), [("GRU4Rec", SequentialDataset), ("DIEN", DIENDataset)])
def test_a_namesake_of_a_model_of_treadles_has_the_rows_that_recbole_gives_it(
    tmp_path: Path, name: str, dataset: type
) -> None:
    text = write(tmp_path, "my_sequence.py").read_text()
    (tmp_path / "mine.py").write_text(text.replace("MySequence", name))
    model = compat.load_model(tmp_path / "mine.py", name)
    config = Config(model, "toy", config_dict=settings(tmp_path, loss_type="CE", MAX_ITEM_LIST_LENGTH=6))
    train, *_ = data_preparation(config, create_dataset(config, inter=interactions()))
    assert type(train.dataset) is dataset
    # One target a row, where Treadle's own GRU4Rec is trained at all positions.
    assert train.batch_at(0, 0)["item_id"].dim() == 1


def test_several_negatives_come_in_the_layout_that_recbole_has(tmp_path: Path) -> None:
    model = compat.load_model(write(tmp_path, "my_general.py"))
    config = Config(model, "toy", config_dict={"train_neg_sample_args": {"sample_num": 3}})
    assert config["train_neg_sample_args"]["layout"] == "flat"


@pytest.mark.parametrize("module", sorted({**SYSTEM, **MODEL_SIDE}))
def test_every_name_that_is_served_is_there(module: str) -> None:
    names = {**SYSTEM, **MODEL_SIDE}[module]
    with compat.recbole_names():
        __import__(module)
        served = sys.modules[module]
        found = [getattr(served, name).__name__ for name in names]
    assert found == list(names)


def test_all_trainers_are_served() -> None:
    with compat.recbole_names():
        from recbole.trainer import KGTrainer, Trainer
        from recbole.trainer.trainer import Trainer as Same
    assert (Trainer, KGTrainer, Same) == (recsys.Trainer, recsys.KGTrainer, recsys.Trainer)


@pytest.mark.parametrize("installed", [True, False])
def test_trees_are_treadles_own_whether_or_not_the_package_is_installed(tmp_path: Path, installed: bool) -> None:
    package = write_package(tmp_path) if installed else None
    with compat.recbole_names(package):
        from recbole.model.exlib_recommender import LightGBM
        from recbole.model.exlib_recommender.lightgbm import LightGBM as Same
    assert LightGBM is Same is get_model("LightGBM")
    if installed:
        assert compat.get_model("LightGBM", package=package) is LightGBM
    # The class has Treadle's settings, before and after.
    assert "default_settings" not in vars(LightGBM)
    assert Config(LightGBM, "toy")["lgb_early_stopping_rounds"] == 50


def test_what_old_files_expect_of_numpy_and_scipy_is_theirs_alone(tmp_path: Path) -> None:
    text = "import numpy as np\nimport scipy.sparse as sp\nclass Mine:\n    def calculate_loss(self): ..."
    (tmp_path / "mine.py").write_text(text)
    module = sys.modules[compat.load_model(tmp_path / "mine.py").__module__]
    assert module.np.float_ is np.float64
    assert module.np.ones is np.ones
    matrix = module.sp.dok_matrix((2, 2))
    matrix._update({(1, 0): 2.0})
    assert matrix.toarray().tolist() == [[0.0, 0.0], [2.0, 0.0]]
    assert not hasattr(np, "float_") or np.lib.NumpyVersion(np.__version__) < "2.0.0"
    assert type(matrix) is not scipy.sparse.dok_matrix


LOADS = """
import torch
from recbole.model.general_recommender import BPR


class Begun(BPR):
    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.load_state_dict(torch.load(config["begin_from"], map_location="cpu")["state_dict"])
"""


@pytest.mark.parametrize("written_by", ["Treadle", "torch"])
def test_a_model_may_begin_from_a_file_that_it_opens_itself(tmp_path: Path, written_by: str) -> None:
    (tmp_path / "begun.py").write_text(LOADS)
    first, _ = trained(tmp_path, "BPR", embedding_size=8)
    file = first.saved_model_file
    if written_by == "torch":
        # As RecBole has it: an object of a class beside the weights.
        file = str(tmp_path / "theirs.pth")
        torch.save({"config": Path("any"), "state_dict": first.model.state_dict()}, file)
    model = compat.load_model(tmp_path / "begun.py")
    config = Config(model, "toy", config_dict=settings(tmp_path, begin_from=file, embedding_size=8))
    begun = model(config, create_dataset(config, inter=interactions()))
    assert begun.item_embedding.weight.equal(first.model.item_embedding.weight)
    # Elsewhere torch is torch's own.
    module = sys.modules[model.__module__]
    assert module.torch.ones is torch.ones
    assert module.torch.load is not torch.load


def test_a_model_that_opens_no_file_has_torch_itself(tmp_path: Path) -> None:
    model = compat.load_model(write(tmp_path, "my_sequence.py"), "MySequence")
    assert sys.modules[model.__module__].torch is torch


def test_a_model_may_look_through_all_histories(tmp_path: Path) -> None:
    model = compat.load_model(write(tmp_path, "my_sequence.py"), "MySequence")
    model.dataset_class = ListedDataset
    config = Config(model, "toy", config_dict=settings(tmp_path, loss_type="CE", MAX_ITEM_LIST_LENGTH=3))
    train, *_ = data_preparation(config, create_dataset(config, inter=interactions()))
    rows = train.dataset[torch.arange(5)]
    assert train.dataset.inter_feat["item_id_list"][:5].equal(rows["item_id_list"])
    assert train.dataset.inter_feat["item_id_list"].shape == (24 * 9, 3)


def test_a_name_is_the_same_thing_each_time(tmp_path: Path) -> None:
    package = write_package(tmp_path)
    assert compat.get_model("Tiny", package=package) is compat.get_model("recbole:Tiny", package=package)


def test_names_can_be_served_for_the_rest_of_the_process() -> None:
    compat.install_names()
    compat.install_names()
    from recbole.model.general_recommender import BPR

    assert BPR is get_model("BPR")


def test_a_model_of_the_package_is_made_of_the_packages_own_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(write_package(tmp_path)))
    assert compat.recbole_models() == ["LightGBM", "Needy", "Tiny"]
    trainer, result = trained(tmp_path, "recbole:Tiny")
    assert trainer.model.of_the_package
    assert trainer.model.users.embedding_dim == 3
    assert trainer.config["tiny_size"] == 3
    assert 0 <= result["ndcg@5"] <= 1


def test_a_model_of_a_file_has_the_settings_of_the_model_of_the_package_that_it_is_made_from(tmp_path: Path) -> None:
    package = write_package(tmp_path)
    text = "from recbole.model.general_recommender.tiny import Tiny\nclass Mine(Tiny): ...\n"
    (tmp_path / "mine.py").write_text(text)
    model = compat.load_model(tmp_path / "mine.py", package=package)
    trainer, _ = trained(tmp_path, model)
    assert trainer.model.users.embedding_dim == 3
    # The model of the package must not be taken for the one that is made from it.
    with pytest.raises(ConfigError, match="there is no model 'Mine'"):
        load_data_and_model(trainer.saved_model_file)


def test_a_saved_model_of_the_package_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(write_package(tmp_path)))
    header = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")
    write_table(tmp_path / "toy", "toy.inter", header, zip(*interactions().values(), strict=True))
    trainer, _ = trained(tmp_path, "recbole:Tiny", data_path=str(tmp_path), tiny_size=2)
    config, model, *_ = load_data_and_model(trainer.saved_model_file)
    assert config["tiny_size"] == 2
    assert model.users.weight.equal(trainer.model.users.weight)


def test_a_saved_model_does_not_decide_which_file_is_run(tmp_path: Path) -> None:
    from treadle.checkpoint import read_file, write_file

    trainer, _ = trained(tmp_path, compat.load_model(write(tmp_path, "my_general.py")), embedding_size=4)
    state = read_file(trainer.saved_model_file)
    write_file(tmp_path / "evil.pth", {**state, "located_at": str(tmp_path / "my_general.py:MyGeneral")})
    with pytest.raises(ConfigError, match="there is no model 'MyGeneral'"):
        load_data_and_model(tmp_path / "evil.pth")


# Refusals -----------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*mine\.py to load a model from"):
        compat.load_model(tmp_path / "mine.py")


def test_a_name_that_is_not_served_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from recbole.utils import SomethingElse\n")
    with pytest.raises(
        ConfigError, match=r"mine\.py imports recbole\.utils\.SomethingElse, which Treadle does not serve"
    ):
        compat.load_model(tmp_path / "mine.py")


def test_of_several_names_that_are_not_served_the_one_of_the_file_is_named(tmp_path: Path) -> None:
    # The modules are there already when the second file asks for the name in the first of them.
    (tmp_path / "all.py").write_text("import recbole.utils, recbole.sampler\nfrom recbole.sampler import Nothing\n")
    (tmp_path / "mine.py").write_text("from recbole.utils import SomethingElse\n")
    for name, wanted in (("all.py", "sampler.Nothing"), ("mine.py", "utils.SomethingElse")):
        with pytest.raises(ConfigError, match=rf"{name} imports recbole\.{wanted}, which Treadle does not serve"):
            compat.load_model(tmp_path / name)


def test_a_module_that_is_not_served_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import recbole.properties.tables\n")
    with pytest.raises(ConfigError, match=r"mine\.py imports recbole\.properties, which Treadle does not serve"):
        compat.load_model(tmp_path / "mine.py")


def test_a_package_that_is_missing_is_named(tmp_path: Path) -> None:
    package = write_package(tmp_path)
    with pytest.raises(MissingDependencyError, match="RecBole's Needy needs a_package_that_nobody_has"):
        compat.get_model("Needy", package=package)


def test_a_file_that_is_no_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine(:\n")
    with pytest.raises(ConfigError, match=r"mine\.py is no Python"):
        compat.load_model(tmp_path / "mine.py")


def test_a_class_that_a_file_does_not_define_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"my_general\.py has no model 'MyGenral'; did you mean 'MyGeneral'"):
        compat.load_model(write(tmp_path, "my_general.py"), "MyGenral")


def test_of_several_models_one_must_be_chosen(tmp_path: Path) -> None:
    text = "class One:\n    def calculate_loss(self): ...\n\n\nclass Two(One): ...\n"
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.py defines \['One', 'Two'\]; say which with .*mine\.py:Name"):
        compat.load_model(tmp_path / "mine.py")


def test_a_model_that_the_package_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="RecBole's package has no model 'Tinny'; did you mean 'Tiny'"):
        compat.get_model("Tinny", package=write_package(tmp_path))


def test_a_folder_without_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no package of RecBole; name the folder that is called 'recbole'"):
        compat.find_package(tmp_path)


def test_without_the_package_its_models_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.recsys.compat.package._installed", lambda: None)
    with pytest.raises(MissingDependencyError, match="RecBole is not installed here: pip install --no-deps recbole"):
        compat.get_model("ENMF")
