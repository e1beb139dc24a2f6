"""The names under which every door reports the same things, so that writers and reports find them."""

import re

TOTAL_LOSS = "total_loss"
"""The loss of an update, over all that the model returned."""

LR = "lr"
"""The learning rate that an update used."""

TIME = "time"
"""Seconds that a step took; the first steps, which warm up, are left out."""

WALL_TIME = "wall_time"
"""When a line of metrics was begun, in seconds since 1970."""

DATA_TIME = "data_time"
"""Seconds that a step waited for its data: the longest wait of any process."""

SAMPLES_PER_SECOND = "samples_per_second"
"""Samples of all processes trained on in a second."""

STEPS_PER_SECOND = "steps_per_second"
"""Updates in a second."""

TOKENS_PER_SECOND = "tokens_per_second"
"""Tokens of all processes trained on in a second."""

MFU = "mfu"
"""Model FLOPs utilisation: the share of the devices' peak that the model's own arithmetic takes."""

STEP_PART = "step_time/"
"""What the names begin with of the seconds that the parts of a step took."""

PEAK_MEMORY_MIB = "peak_memory_mib"
"""The most memory that was taken on the device, or by the process, in MiB."""

ETA_SECONDS = "eta_seconds"
"""Seconds until the run ends, by the pace so far."""

THROUGHPUT = (SAMPLES_PER_SECOND, STEPS_PER_SECOND, TOKENS_PER_SECOND, MFU, PEAK_MEMORY_MIB)
"""What says how well a run uses its machine, beside the times of its steps."""

MEASURED = (TIME, DATA_TIME, ETA_SECONDS, *THROUGHPUT)
"""What tells of the process that reported it, and of no other that resumes its run."""

LOWER_WORDS = """
    loss error err mae mse rmse mape smape nll perplexity ppl bpc bpb wer cer ter fid brier ece
    deviation distance regret divergence kl
"""
HIGHER_WORDS = """
    accuracy acc auc auroc auprc gauc f1 fbeta precision recall sensitivity specificity ndcg hit hitrate mrr map ap
    bleu chrf meteor iou miou dice jaccard r2 psnr ssim kappa mcc reward score spearman pearson
"""
LOWER = frozenset(LOWER_WORDS.split())
"""Words in the names of metrics that are better the lower they are."""
HIGHER = frozenset(HIGHER_WORDS.split())
"""Words in the names of metrics that are better the higher they are."""
_WORD = re.compile(r"[a-z]+\d?")


def direction_of(name: str) -> str | None:
    """Return whether a metric is better low or high, by the words of its name; None if they do not say.

    >>> [direction_of(name) for name in ("eval_loss_epoch", "val/top1_acc", "valid_ndcg@10", "rougeL", "temperature")]
    ['min', 'max', 'max', 'max', None]
    """
    words = _WORD.findall(re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", name).lower())
    if not LOWER.isdisjoint(words):  # first: a Brier score is an error
        return "min"
    return "max" if any(word in HIGHER or word.startswith("rouge") for word in words) else None
