"""A tokenizer, or a processor, kept with the run."""

from pathlib import Path
from typing import Any

from treadle.callback import TrainerCallback
from treadle.errors import CheckpointError, ConfigError
from treadle.loop.interfaces import RunningTrainer
from treadle.runs.pretrained import PRETRAINED


class TokenizerFiles(TrainerCallback):
    """Keeps a tokenizer with the run, so that `treadle export --format hf` writes it beside the model.

    The one of a collator of transformers is kept without this; here is the place for one that the trainer does not see.

    Args:
        tokenizer: A tokenizer, a processor, or whatever else has `save_pretrained`.

    Raises:
        ConfigError: It has not.
    """

    def __init__(self, tokenizer: Any) -> None:
        if isinstance(tokenizer, type) or not callable(getattr(tokenizer, "save_pretrained", None)):
            raise ConfigError(f"TokenizerFiles({tokenizer!r}): give a tokenizer or a processor, with save_pretrained()")
        self._tokenizer = tokenizer

    def begin_session(self, trainer: RunningTrainer, *, training: bool) -> None:
        """Write it into the folder of the run.

        Raises:
            ConfigError: The run has no folder.
            CheckpointError: The disk does not take it.
        """
        if not training:
            return
        if trainer.run_dir is None:
            raise ConfigError("TokenizerFiles has nowhere to keep the tokenizer; give the trainer a run_dir=")
        if trainer.processes.is_main:
            folder = Path(trainer.run_dir) / PRETRAINED
            try:
                self._tokenizer.save_pretrained(folder)
            except OSError as error:
                raise CheckpointError(f"cannot write {folder}: {error}") from error
