"""What the search of the site finds first."""

from typing import Any

WORDS = {
    "install.md": ["install", "installation", "pip"],
    "from-a-loop.md": ["training loop", "convert"],
    "callbacks.md": ["early stopping", "EMA", "progress bar"],
    "data.md": ["validation set", "data augmentation", "DataLoader", "shuffle"],
    "metrics.md": ["metrics", "accuracy"],
    "parallel.md": ["multi-GPU", "DDP", "distributed"],
    "scaling.md": ["FSDP", "sharding", "pipeline parallel"],
    "launching.md": ["SLURM", "torchrun"],
    "precision.md": ["mixed precision", "AMP", "bf16", "fp16"],
    "resume.md": ["checkpoint", "resume"],
    "schedules.md": ["learning rate", "scheduler", "warmup"],
    "numbers.md": ["gradient accumulation"],
    "execution.md": ["torch.compile", "CUDA graph"],
    "events.md": ["TensorBoard", "Weights & Biases", "wandb", "MLflow", "logging"],
    "nas-search.md": ["hyperparameter search", "Optuna"],
    "recipes/adapters.md": ["LoRA", "adapters"],
    "recipes/transformers.md": ["Hugging Face", "transformers", "PEFT"],
    "sources.md": ["streaming", "large data sets"],
    "recipes/fine-tuning.md": ["fine-tuning", "freeze layers"],
    "recipes/gan.md": ["GAN", "two optimizers"],
}
"""Words that people search for, by the page that has the answer: it comes first."""
WEIGHTS = {"decisions.md": 0.2, "architecture.md": 0.3, "guarantees.md": 0.5, "import-map.md": 0.3}
"""Pages that have many words, and few answers for users."""
REFERENCE = 0.7
"""What the reference weighs: its pages come behind those that explain, unless a name is searched for."""


def search_settings(path: str) -> dict[str, Any]:
    """Return what the page at a path of the site says of itself to the search, as the front matter of a page does.

    Files of the repository that pages link to, tests above all, are shown and not searched.
    """
    if path.startswith("source/"):
        return {"search": {"exclude": True}}
    weight = REFERENCE if path.startswith("reference/") else WEIGHTS.get(path, 1.0)
    return {"tags": WORDS.get(path, []), "search": {"boost": weight}}
