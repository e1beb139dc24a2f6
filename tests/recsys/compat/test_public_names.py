"""Every public name of RecBole's is served, or says what stands in its place."""

import importlib
import logging
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.recsys.data.small import write_table
from tests.recsys.trainer.runs import graph, interactions, make, settings
from treadle.errors import ConfigError
from treadle.recsys import Config, compat, data_preparation, get_model, get_trainer
from treadle.recsys.compat.name_table import REFUSED
from treadle.recsys.compat.package import VARIABLE

PUBLIC = {
    "config.configurator": "Config",
    "data.dataloader.abstract_dataloader": "AbstractDataLoader NegSampleDataLoader",
    "data.dataloader.general_dataloader": "TrainDataLoader NegSampleEvalDataLoader FullSortEvalDataLoader",
    "data.dataloader.knowledge_dataloader": "KGDataLoader KnowledgeBasedDataLoader",
    "data.dataloader.user_dataloader": "UserDataLoader",
    "data.dataset.customized_dataset": "GRU4RecKGDataset KSRDataset DIENDataset",
    "data.dataset.dataset": "Dataset",
    "data.dataset.decisiontree_dataset": "DecisionTreeDataset",
    "data.dataset.kg_dataset": "KnowledgeBasedDataset",
    "data.dataset.kg_seq_dataset": "KGSeqDataset",
    "data.dataset.sequential_dataset": "SequentialDataset",
    "data.interaction": "Interaction cat_interactions",
    "data.transform": "construct_transform Equal MaskItemSequence InverseItemSequence CropItemSequence "
    "ReorderItemSequence UserDefinedTransform",
    "data.utils": "create_dataset save_split_dataloaders load_split_dataloaders data_preparation get_dataloader "
    "create_samplers",
    "evaluator.base_metric": "AbstractMetric TopkMetric LossMetric",
    "evaluator.collector": "DataStruct Collector",
    "evaluator.evaluator": "Evaluator",
    "evaluator.metrics": "Hit MRR MAP Recall NDCG Precision GAUC AUC MAE RMSE LogLoss ItemCoverage "
    "AveragePopularity ShannonEntropy GiniIndex TailPercentage",
    "evaluator.register": "cluster_info Register",
    "evaluator.utils": "pad_sequence trunc cutoff",
    "model.abstract_recommender": "AbstractRecommender GeneralRecommender AutoEncoderMixin SequentialRecommender "
    "KnowledgeRecommender ContextRecommender",
    "model.init": "xavier_normal_initialization xavier_uniform_initialization",
    "model.layers": "MLPLayers activation_layer FMEmbedding FLEmbedding BaseFactorizationMachine BiGNNLayer "
    "AttLayer Dice SequenceAttLayer VanillaAttention MultiHeadAttention FeedForward TransformerLayer "
    "TransformerEncoder ItemToInterestAggregation LightMultiHeadAttention LightTransformerLayer "
    "LightTransformerEncoder ContextSeqEmbAbstractLayer ContextSeqEmbLayer FeatureSeqEmbLayer CNNLayers "
    "FMFirstOrderLinear SparseDropout",
    "model.loss": "BPRLoss RegLoss EmbLoss EmbMarginLoss",
    "quick_start.quick_start": "run run_recbole run_recboles objective_function load_data_and_model",
    "sampler.sampler": "AbstractSampler Sampler KGSampler RepeatableSampler SeqSampler",
    "trainer.hyper_tuning": "ExhaustiveSearchError exhaustive_search HyperTuning",
    "trainer.trainer": "AbstractTrainer Trainer KGTrainer KGATTrainer PretrainTrainer S3RecTrainer MKRTrainer "
    "TraditionalTrainer DecisionTreeTrainer XGBoostTrainer LightGBMTrainer RaCTTrainer RecVAETrainer "
    "NCLTrainer",
    "utils.case_study": "full_sort_scores full_sort_topk",
    "utils.enum_type": "ModelType KGDataLoaderState EvaluatorType InputType FeatureType FeatureSource",
    "utils.logger": "RemoveColorFilter set_color init_logger",
    "utils.url": "decide_download makedirs download_url extract_zip rename_atomic_files",
    "utils.utils": "get_local_time ensure_dir get_model get_trainer early_stopping calculate_valid_score dict2str "
    "init_seed get_tensorboard get_gpu_usage get_flops list_to_latex get_environment",
    "utils.wandblogger": "WandbLogger",
}
"""The classes and functions that RecBole 1.2.1 defines, by module; those of models are left out."""
SERVED = 142


def served(module: str, name: str) -> Any:
    """Return what is served by a name; the reason where nothing is."""
    with compat.recbole_names(package=None):
        try:
            return getattr(importlib.import_module(f"recbole.{module}"), name)
        except ImportError as error:
            return error


def test_of_all_public_names_most_are_served_and_the_others_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    # RecBole's own package, where there is one, serves what is refused here.
    monkeypatch.delenv(VARIABLE, raising=False)
    names = [(module, name) for module, own in PUBLIC.items() for name in own.split()]
    assert len(names) == 152
    found = {(module, name): served(module, name) for module, name in names}
    missing = {name: value for (_, name), value in found.items() if isinstance(value, ImportError)}
    assert len(names) - len(missing) == SERVED
    assert set(missing) == set(REFUSED)
    for name, error in missing.items():
        assert f".{name} is not served: {REFUSED[name]}" in str(error)


def test_a_file_that_imports_what_is_not_served_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("from recbole.utils.url import download_url\n")
    with pytest.raises(
        ConfigError, match=r"imports recbole\.utils\.url\.download_url, which Treadle does not serve: no"
    ):
        compat.load_model(tmp_path / "own.py")


def test_a_data_set_of_histories_with_a_graph_trains_a_sequence_model(tmp_path: Path) -> None:
    kind = served("data.dataset.kg_seq_dataset", "KGSeqDataset")
    small: dict[str, Any] = {"hidden_size": 8, "embedding_size": 8, "MAX_ITEM_LIST_LENGTH": 5, "epochs": 1}
    config = Config("GRU4Rec", "toy", config_dict=settings(tmp_path, train_all_positions=False, **small))
    dataset = kind(config, tables={"inter": interactions(), **graph()})
    assert (dataset.entity_num, dataset.relation_num) == (41, 5)
    train, valid, test = data_preparation(config, dataset)
    assert type(train).__name__ == "TrainDataLoader"
    assert "item_id_list" in next(iter(train)).columns
    trainer = get_trainer(config, get_model("GRU4Rec")(config, train.dataset))
    trainer.fit(train, valid, verbose=False)
    assert trainer.evaluate(test)["recall@5"] >= 0
    assert issubclass(served("data.dataset", "KSRDataset"), kind)


def test_the_small_functions_do_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = make(tmp_path)
    config = run.trainer.config
    table = served("utils", "get_environment")(config).draw().splitlines()
    assert [line.split("|")[1].strip() for line in table] == ["Environment", "CPU", "GPU", "Memory"]
    flops = served("utils", "get_flops")(
        run.model.cpu(), run.train.dataset, "cpu", logging.getLogger(), lambda dataset, batch: batch
    )
    assert flops == 0  # the score of a pair is a product of two embeddings, which is no matrix product
    frame, tex = served("utils", "list_to_latex")(
        [{"Model": "A_1", "ndcg@10": 0.5}, {"Model": "B", "ndcg@10": 0.25}], subset_columns=["ndcg@10"]
    )
    assert frame["ndcg@10"].tolist() == [0.5, 0.25]
    assert "A\\_1 & \\textbf{0.5000} \\\\" in tex
    assert "B & 0.2500 \\\\" in tex
    record = logging.LogRecord("a", logging.INFO, "a.py", 1, "\x1b[1;35mepoch\x1b[0m 1", None, None)
    assert served("utils.logger", "RemoveColorFilter")().filter(record)
    assert record.msg == "epoch 1"
    with served("utils", "get_tensorboard")(logging.getLogger("nobody")) as writer:
        writer.add_scalar("loss", 1.0, 0)
    assert len(list((tmp_path / "log_tensorboard").glob("model-*/events*"))) == 1


def test_flops_of_a_model_with_layers_are_counted(tmp_path: Path) -> None:
    run = make(tmp_path, "NeuMF", mf_embedding_size=8, mlp_embedding_size=8, mlp_hidden_size=[4])
    count = served("utils", "get_flops")
    flops = count(run.model, run.train.dataset, "cpu", logging.getLogger(), lambda _, batch: batch, verbose=True)
    assert flops == 2 * (16 * 4 + 12 * 1)
    assert run.model.training


def test_programs_of_this_kind_run_from_a_file(tmp_path: Path) -> None:
    header = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")
    write_table(tmp_path / "data" / "toy", "toy.inter", header, zip(*interactions().values(), strict=True))
    given = settings(tmp_path, data_path=str(tmp_path / "data"), embedding_size=8, epochs=1)
    program = f"""
from recbole.config import Config
from recbole.data import create_dataset
from recbole.data.utils import create_samplers, get_dataloader
from recbole.evaluator import TopkMetric
from recbole.utils import get_model, get_trainer, init_seed


class ProgramHit(TopkMetric):
    def calculate_metric(self, dataobject):
        hits, _ = self.used_info(dataobject)
        return self.topk_result("programhit", (hits.cumsum(axis=1) > 0).astype(float))


given = {given!r}
given["metrics"] = ["Hit", "ProgramHit"]
given["valid_metric"] = "ProgramHit@5"
config = Config(model="BPR", dataset="toy", config_dict=given)
init_seed(config["seed"], config["reproducibility"])
dataset = create_dataset(config)
train_set, valid_set, test_set = built = dataset.build()
samplers = create_samplers(config, dataset, built)
train_data = get_dataloader(config, "train")(config, train_set, samplers[0], shuffle=True)
valid_data = get_dataloader(config, "valid")(config, valid_set, samplers[1], shuffle=False)
test_data = get_dataloader(config, "test")(config, test_set, samplers[2], shuffle=False)
model = get_model(config["model"])(config, train_data.dataset).to(config["device"])
trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, model)
trainer.fit(train_data, valid_data, saved=False, verbose=False)
result = trainer.evaluate(test_data, load_best_model=False)
"""
    (tmp_path / "program.py").write_text(program)
    with compat.recbole_names():
        space = runpy.run_path(str(tmp_path / "program.py"))
    assert space["result"]["hit@5"] == space["result"]["programhit@5"]
    assert torch.isfinite(torch.tensor(list(space["result"].values()))).all()
