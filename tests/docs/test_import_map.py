"""Every line of the import map works, and no public name of the other systems is missing from it."""

import ast
from pathlib import Path

import pytest

from tests.contract.pages import IMPORT_MAP, read_import_map, run
from treadle import recsys

PUBLIC_NAMES = {
    "": "Trainer TrainerPlaceholderValues notebook_launcher __version__",
    ".trainer": "DEFAULT_CALLBACKS Trainer TrainerPlaceholderValues TrainerWithTimmScheduler "
    "replace_trainer_placeholder_values",
    ".callbacks": "CallbackHandler CallbackMethodNotImplementedError ConvertSyncBatchNormCallback "
    "EarlyStoppingCallback LimitBatchesCallback LimitEvalStepsCallback LogMetricsCallback ModelEmaCallback "
    "MoveModulesToDeviceCallback PrintProgressCallback ProgressBarCallback SaveBestModelCallback "
    "SaveTrainingStateCallback StepBasedEvaluationCallback StopTrainingError TerminateOnNaNCallback TrainerCallback "
    "WSDCheckpointCallback get_default_callbacks",
    ".tracking": "InMemoryRunHistory LossTracker RunHistory",
    ".run_config": "TrainerRunConfig",
    ".schedulers": "CosineLrScheduler SchedulerBase StatefulSchedulerBase WSDLrScheduler",
    ".schedulers.cosine_scheduler": "CosineLrScheduler",
    ".schedulers.scheduler_base": "SchedulerBase StatefulSchedulerBase",
    ".schedulers.wsd_scheduler": "WSDLrScheduler estimate_checkpoint_steps",
    ".finetuning": "BN_MODULES Layer LayerGroup ModelFreezer",
    ".utils": "DataLoaderSlice LIMIT_BATCHES_ENV_VAR LimitBatches ModelEma local_process_zero_first "
    "local_process_zero_only remove_padding worker_init_fn world_process_zero_only",
}
"""What pytorch-accelerated 0.1.61 defines, module by module."""


RECBOLE_NAMES = {
    ".config": "Config",
    ".data": "create_dataset data_preparation save_split_dataloaders load_split_dataloaders get_dataloader "
    "create_samplers",
    ".data.dataloader": "AbstractDataLoader NegSampleDataLoader TrainDataLoader NegSampleEvalDataLoader "
    "FullSortEvalDataLoader KGDataLoader KnowledgeBasedDataLoader UserDataLoader",
    ".data.dataset": "Dataset SequentialDataset KnowledgeBasedDataset KGSeqDataset DecisionTreeDataset "
    "GRU4RecKGDataset KSRDataset DIENDataset",
    ".data.interaction": "Interaction cat_interactions",
    ".data.transform": "construct_transform Equal MaskItemSequence InverseItemSequence CropItemSequence "
    "ReorderItemSequence UserDefinedTransform",
    ".evaluator": "AbstractMetric TopkMetric LossMetric Evaluator Register DataStruct Collector",
    ".model.abstract_recommender": "AbstractRecommender GeneralRecommender AutoEncoderMixin SequentialRecommender "
    "KnowledgeRecommender ContextRecommender",
    ".model.init": "xavier_normal_initialization xavier_uniform_initialization",
    ".model.layers": "MLPLayers activation_layer FMEmbedding FLEmbedding BaseFactorizationMachine BiGNNLayer AttLayer "
    "Dice SequenceAttLayer VanillaAttention MultiHeadAttention FeedForward TransformerLayer TransformerEncoder "
    "ItemToInterestAggregation LightMultiHeadAttention LightTransformerLayer LightTransformerEncoder "
    "ContextSeqEmbAbstractLayer ContextSeqEmbLayer FeatureSeqEmbLayer CNNLayers FMFirstOrderLinear SparseDropout",
    ".model.loss": "BPRLoss RegLoss EmbLoss EmbMarginLoss",
    ".quick_start": "run run_recbole objective_function load_data_and_model run_recboles",
    ".sampler": "Sampler KGSampler RepeatableSampler SeqSampler",
    ".trainer": "HyperTuning AbstractTrainer Trainer KGTrainer KGATTrainer PretrainTrainer S3RecTrainer MKRTrainer "
    "TraditionalTrainer DecisionTreeTrainer XGBoostTrainer LightGBMTrainer RaCTTrainer RecVAETrainer NCLTrainer",
    ".utils": "init_logger get_local_time ensure_dir get_model get_trainer early_stopping calculate_valid_score "
    "dict2str ModelType KGDataLoaderState EvaluatorType InputType FeatureType FeatureSource init_seed "
    "get_tensorboard set_color get_gpu_usage get_flops get_environment list_to_latex WandbLogger",
    ".utils.case_study": "full_sort_scores full_sort_topk",
}
"""What RecBole 1.2.1 defines, module by module, models and metrics left out."""
OWN_MODELS = {
    "ELSA",
    "GFCF",
    "HSTU",
    "IALS",
    "RP3beta",
    "UltraGCN",
    "UserKNN",
    "WholeSequenceRecommender",
    "eSASRec",
    "gSASRec",
}
"""Models of Treadle that RecBole does not have."""
RENAMED = {"SLIM": "SLIMElastic", "DCNv2": "DCNV2"}
"""What RecBole calls models that have another name here."""
MODEL_SETTINGS = [
    path.name for path in (Path(recsys.__file__).parent / "config" / "properties" / "model").glob("*.yaml")
]


def bound_name(line: str) -> str:
    """Return the name that an import line gives."""
    (node,) = ast.parse(line).body
    assert isinstance(node, ast.ImportFrom)
    (alias,) = node.names
    return alias.asname or alias.name


@pytest.mark.parametrize(("theirs", "ours"), read_import_map().items())
def test_our_line_gives_the_name_that_theirs_gave(theirs: str, ours: str) -> None:
    name = bound_name(theirs)
    assert bound_name(ours) == name
    assert run(ours)[name] is not None


@pytest.mark.parametrize(("module", "names"), PUBLIC_NAMES.items())
def test_every_public_name_of_pytorch_accelerated_is_in_the_map(module: str, names: str) -> None:
    text = IMPORT_MAP.read_text()
    lines = [f"| `from pytorch_accelerated{module} import {name}` |" for name in names.split()]
    assert [line for line in lines if text.count(line) != 1] == []


@pytest.mark.parametrize(("module", "names"), RECBOLE_NAMES.items())
def test_every_public_name_of_recbole_is_in_the_map_or_has_something_in_its_place(module: str, names: str) -> None:
    text = IMPORT_MAP.read_text()
    without = text.split("| without a line |")[1].split("\n\n")[0]
    told = {name for row in without.splitlines() for name in row.split("|")[1].split("`")[1::2]}
    lines = {name: f"| `from recbole{module} import {name}` |" for name in names.split()}
    assert [name for name, line in lines.items() if (text.count(line) == 1) == (name in told)] == []


@pytest.mark.parametrize("name", [one.removesuffix(".yaml") for one in sorted(MODEL_SETTINGS)])
def test_every_model_that_recbole_has_too_is_in_the_map(name: str) -> None:
    if name in OWN_MODELS:
        return
    assert f"_recommender import {RENAMED.get(name, name)}` | `from treadle.recsys.models." in IMPORT_MAP.read_text()


def test_each_line_of_theirs_stands_in_the_map_once() -> None:
    rows = [line for line in IMPORT_MAP.read_text().splitlines() if line.startswith("| `from ")]
    theirs = [row.split("`")[1] for row in rows]
    assert len(theirs) == len(set(theirs))
