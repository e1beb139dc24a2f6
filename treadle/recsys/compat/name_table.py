"""Which names of RecBole's are served, and by what of Treadle's."""

from collections.abc import Mapping

ROOT = "recbole"
FAMILIES = (
    "general_recommender",
    "sequential_recommender",
    "context_aware_recommender",
    "knowledge_aware_recommender",
    "exlib_recommender",
)
"""The packages of models, below `recbole.model`."""
MODELS = f"{ROOT}.model"
TREES = f"{MODELS}.exlib_recommender"
"""The family whose models are boosters of other libraries; Treadle's are served even where RecBole is installed."""
RECBOLE_MODELS = frozenset(
    [
        "ADMMSLIM",
        "AFM",
        "AsymKNN",
        "AutoInt",
        "BERT4Rec",
        "BPR",
        "CDAE",
        "CFKG",
        "CKE",
        "CORE",
        "Caser",
        "ConvNCF",
        "DCN",
        "DCNV2",
        "DGCF",
        "DIEN",
        "DIN",
        "DMF",
        "DSSM",
        "DeepFM",
        "DiffRec",
        "EASE",
        "ENMF",
        "EulerNet",
        "FDSA",
        "FEARec",
        "FFM",
        "FISM",
        "FM",
        "FNN",
        "FOSSIL",
        "FPMC",
        "FiGNN",
        "FwFM",
        "GCMC",
        "GCSAN",
        "GRU4Rec",
        "GRU4RecCPR",
        "GRU4RecF",
        "GRU4RecKG",
        "HGN",
        "HRM",
        "ItemKNN",
        "KD_DAGFM",
        "KGAT",
        "KGCN",
        "KGIN",
        "KGNNLS",
        "KSR",
        "KTUP",
        "LDiffRec",
        "LINE",
        "LR",
        "LightGBM",
        "LightGCN",
        "LightSANs",
        "MCCLK",
        "MKR",
        "MacridVAE",
        "MultiDAE",
        "MultiVAE",
        "NAIS",
        "NARM",
        "NCEPLRec",
        "NCL",
        "NFM",
        "NGCF",
        "NNCF",
        "NPE",
        "NeuMF",
        "NextItNet",
        "PNN",
        "Pop",
        "RaCT",
        "Random",
        "RecVAE",
        "RepeatNet",
        "RippleNet",
        "S3Rec",
        "SASRec",
        "SASRecCPR",
        "SASRecF",
        "SGL",
        "SHAN",
        "SINE",
        "SLIMElastic",
        "SRGNN",
        "STAMP",
        "SimpleX",
        "SpectralCF",
        "TransRec",
        "WideDeep",
        "XGBoost",
        "xDeepFM",
    ]
)
"""The models of RecBole 1.2.1, for messages where its package is not installed."""
TRAINERS = (f"{ROOT}.trainer", f"{ROOT}.trainer.trainer")
"""The modules that have all trainers."""

_ENUMS = ("enums", "ModelType InputType EvaluatorType FeatureType FeatureSource KGDataLoaderState")
_PLAIN = (
    "compat.functions",
    "set_color ensure_dir get_local_time get_gpu_usage get_flops list_to_latex get_environment",
)
_LOGS = ("trainers.loggers", "get_tensorboard")
_WANDB = ("trainers.loggers", "WandbLogger")
_RESULTS = ("trainers.results", "early_stopping calculate_valid_score dict2str")
_CHOOSING = [("model_registry", "get_model"), ("trainers.registry", "get_trainer"), ("quick_start", "init_seed")]
_CONFIG = [("config.configurator", "Config")]
_DATASET = [("data.dataset", "Dataset")]
_SEQUENTIAL = [("data.sequential_dataset", "SequentialDataset")]
_KNOWLEDGE = [("data.knowledge_dataset", "KnowledgeBasedDataset")]
_CUSTOMIZED = [("data.sequential_dataset", "DIENDataset"), ("compat.data", "GRU4RecKGDataset KSRDataset")]
_TREES = [("compat.data", "DecisionTreeDataset")]
_GRAPH_SEQUENCES = [("compat.data", "KGSeqDataset")]
_PREPARING = [
    ("data.preparation", "create_dataset data_preparation"),
    ("compat.data", "get_dataloader create_samplers save_split_dataloaders load_split_dataloaders"),
]
_ABSTRACT_LOADER = [("data.dataloader", "AbstractDataLoader NegSampleDataLoader")]
_GENERAL_LOADERS = [("data.dataloader", "TrainDataLoader NegSampleEvalDataLoader FullSortEvalDataLoader")]
_GRAPH_LOADERS = [("data.dataloader", "KGDataLoader KnowledgeBasedDataLoader")]
_USER_LOADER = [("data.dataloader", "UserDataLoader")]
_STARTING = [("quick_start", "run run_recbole objective_function load_data_and_model")]
_LOGGER = [("quick_start", "init_logger"), ("compat.functions", "set_color RemoveColorFilter")]
_SAMPLERS = [("compat.samplers", "AbstractSampler Sampler RepeatableSampler KGSampler SeqSampler")]

_BASES = [("evaluation.metric_classes", "AbstractMetric TopkMetric LossMetric")]
_METRICS = [
    (
        "evaluation.evaluator",
        "Hit MRR MAP Recall NDCG Precision GAUC AUC MAE RMSE LogLoss ItemCoverage AveragePopularity ShannonEntropy "
        "GiniIndex TailPercentage",
    )
]
_REGISTER = [("evaluation.evaluator", "cluster_info Register metrics_dict")]
_COLLECTOR = [("evaluation.metric_classes", "DataStruct"), ("evaluation.evaluator", "Collector")]
_EVALUATOR = [("evaluation.evaluator", "Evaluator")]

_TABLE: dict[str, list[tuple[str, str]]] = {
    "": [],
    "config": _CONFIG,
    "config.configurator": _CONFIG,
    "data": _PREPARING,
    "data.utils": _PREPARING,
    "data.interaction": [("data.interaction", "Interaction cat_interactions")],
    "data.transform": [
        (
            "compat.data",
            "construct_transform Equal MaskItemSequence InverseItemSequence CropItemSequence ReorderItemSequence "
            "UserDefinedTransform",
        ),
    ],
    "data.dataset": _DATASET + _SEQUENTIAL + _KNOWLEDGE + _CUSTOMIZED + _TREES + _GRAPH_SEQUENCES,
    "data.dataset.dataset": _DATASET,
    "data.dataset.sequential_dataset": _SEQUENTIAL,
    "data.dataset.kg_dataset": _KNOWLEDGE,
    "data.dataset.customized_dataset": _CUSTOMIZED,
    "data.dataset.decisiontree_dataset": _TREES,
    "data.dataset.kg_seq_dataset": _GRAPH_SEQUENCES,
    "data.dataloader": _ABSTRACT_LOADER + _GENERAL_LOADERS + _GRAPH_LOADERS + _USER_LOADER,
    "data.dataloader.abstract_dataloader": _ABSTRACT_LOADER,
    "data.dataloader.general_dataloader": _GENERAL_LOADERS,
    "data.dataloader.knowledge_dataloader": _GRAPH_LOADERS,
    "data.dataloader.user_dataloader": _USER_LOADER,
    "evaluator": _BASES + _METRICS + _EVALUATOR + _REGISTER + _COLLECTOR,
    "evaluator.base_metric": _BASES,
    "evaluator.collector": _COLLECTOR,
    "evaluator.evaluator": _EVALUATOR,
    "evaluator.metrics": _METRICS,
    "evaluator.register": _REGISTER,
    "evaluator.utils": [("compat.functions", "pad_sequence trunc cutoff")],
    "quick_start": _STARTING,
    "quick_start.quick_start": _STARTING,
    "sampler": _SAMPLERS,
    "sampler.sampler": _SAMPLERS,
    "trainer": [("compat.hyper_tuning", "HyperTuning")],
    "trainer.hyper_tuning": [("compat.hyper_tuning", "HyperTuning ExhaustiveSearchError exhaustive_search")],
    "trainer.trainer": [],
    "utils": [_ENUMS, _PLAIN, _RESULTS, *_CHOOSING, *_LOGGER, _LOGS, _WANDB],
    "utils.enum_type": [_ENUMS],
    "utils.utils": [_PLAIN, _RESULTS, *_CHOOSING, _LOGS],
    "utils.logger": _LOGGER,
    "utils.url": [],
    "utils.wandblogger": [_WANDB],
    "utils.case_study": [("serve.case_study", "full_sort_scores full_sort_topk")],
}
_MODEL_TABLE: dict[str, list[tuple[str, str]]] = {
    "model.abstract_recommender": [
        (
            "models.abstract_recommender",
            "AbstractRecommender GeneralRecommender AutoEncoderMixin SequentialRecommender KnowledgeRecommender "
            "ContextRecommender",
        )
    ],
    "model.init": [("models.init", "xavier_normal_initialization xavier_uniform_initialization")],
    "model.loss": [("models.loss", "BPRLoss RegLoss EmbLoss EmbMarginLoss")],
    "model.layers": [
        (
            "models.layers",
            "MLPLayers activation_layer FMEmbedding FLEmbedding BaseFactorizationMachine BiGNNLayer AttLayer Dice "
            "SequenceAttLayer VanillaAttention MultiHeadAttention FeedForward TransformerLayer TransformerEncoder "
            "ContextSeqEmbAbstractLayer ContextSeqEmbLayer FeatureSeqEmbLayer CNNLayers FMFirstOrderLinear "
            "SparseDropout InterestExtractorNetwork InterestEvolvingLayer",
        )
    ],
}

Names = Mapping[str, str]
"""Names of a module, and the module of Treadle's that has each."""


def _spread(table: Mapping[str, list[tuple[str, str]]]) -> dict[str, Names]:
    spread: dict[str, Names] = {}
    for module, groups in table.items():
        found = {name: f"treadle.recsys.{ours}" for ours, names in groups for name in names.split()}
        spread[f"{ROOT}.{module}".rstrip(".")] = found
    return spread


SYSTEM: Mapping[str, Names] = _spread(_TABLE)
"""What is served whether or not RecBole is installed: settings, data, trainers, evaluation."""
MODEL_SIDE: Mapping[str, Names] = _spread(_MODEL_TABLE)
"""What models are made of: served where RecBole is not installed, and its own where it is."""

_DOWNLOADS = "nothing is downloaded; put the atomic files of a data set into data_path/NAME/"
_LIGHTSANS = "it belongs to LightSANs; with pip install --no-deps recbole it is served from there"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(["decide_download", "makedirs", "download_url", "extract_zip", "rename_atomic_files"], _DOWNLOADS),
    **dict.fromkeys(
        [
            "ItemToInterestAggregation",
            "LightMultiHeadAttention",
            "LightTransformerLayer",
            "LightTransformerEncoder",
        ],
        _LIGHTSANS,
    ),
    "run_recboles": "it is what a process of RecBole's run begins with; call run(..., nproc=2), or run_recbole under "
    "torchrun",
}
"""Names that are not served, and what to do instead."""
