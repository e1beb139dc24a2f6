"""What a language model says as it trains."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from treadle.callback import TrainerCallback
from treadle.errors import ConfigError
from treadle.loop.interfaces import RunningTrainer
from treadle.ops.eval_mode import eval_mode
from treadle.progress import Cadence
from treadle.runs.panels import write_table

TITLE = "Samples"
COLUMNS = ("step", "prompt", "text")


class GenerateSamples(TrainerCallback):
    """Has a model of transformers continue prompts every so often; the page of the run shows what it said.

    It is written to `panels/Samples.json` in the folder of the run, kept with its checkpoints, and changes nothing in
    the training: modes of modules and random numbers are those of a run without it.

    Args:
        tokenizer: Turns the prompts into tokens, and tokens into text.
        prompts: What is to be continued; or, for a model with an encoder, what is given to that.
        every: How often, as "1 epoch", "500 steps" or a number of steps; and at the end of the run.
        max_new_tokens: The most tokens to add to each prompt.
        seed: What the samples follow from, where `do_sample=True` has them drawn.
        options: Further arguments of the model's `generate`, such as `do_sample` or `num_beams`.

    Attributes:
        rows: The step, the prompt and the text of each sample of the run so far.

    Raises:
        ConfigError: There is no prompt, or `every` is no interval.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompts: Sequence[str],
        *,
        every: int | str = "1 epoch",
        max_new_tokens: int = 40,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if isinstance(prompts, str) or not prompts:
            raise ConfigError(f"GenerateSamples(prompts={prompts!r}): give a list of at least one text")
        self._tokenizer, self._prompts = tokenizer, list(prompts)
        self._cadence = Cadence.parse(every, name="GenerateSamples: every")
        self._seed = seed
        self._options = {"max_new_tokens": max_new_tokens, **options}
        self.rows: list[tuple[int, str, str]] = []

    def begin_session(self, trainer: RunningTrainer, *, training: bool) -> None:
        """Refuse what cannot be asked for text.

        Raises:
            ConfigError: The model has no `generate`, or lies in pieces on several processes.
        """
        if not callable(getattr(trainer.model, "generate", None)):
            raise ConfigError(
                f"GenerateSamples: a {type(trainer.model).__name__} has no generate(); give the trainer a model of "
                "transformers that has a head for language"
            )
        if trainer.parallel.is_sharded or trainer.parallel.is_pipeline:
            raise ConfigError(
                f"GenerateSamples: no process has all of the model under {trainer.parallel.as_argument()}; leave it "
                "out, and generate from an exported checkpoint"
            )

    def on_training_run_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Begin anew where the run does."""
        if trainer.progress.step == 0:
            self.rows = []

    def on_update_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Generate, where it goes by steps and is due."""
        if self._cadence.due_after_step(trainer.progress.step):
            self.generate(trainer)

    def on_training_run_epoch_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Generate, where it goes by epochs and is due."""
        if self._cadence.due_after_epoch(trainer.progress.epoch):
            self.generate(trainer)

    def on_training_run_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Generate once more, for the model as it is now."""
        self.generate(trainer)

    def generate(self, trainer: RunningTrainer) -> None:
        """Have each prompt continued by the model as it is, once for each step, on the first process."""
        step = trainer.progress.step
        if not trainer.processes.is_main or any(row[0] == step for row in self.rows):
            return
        devices = [trainer.device] if trainer.device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices), eval_mode(trainer.model), trainer.precision.autocast():
            torch.manual_seed(self._seed)
            texts = [self._continued(trainer.model, prompt, trainer.device) for prompt in self._prompts]
        self.rows += [(step, prompt, text) for prompt, text in zip(self._prompts, texts, strict=True)]
        if trainer.run_dir is not None:
            # The newest first: that is what one looks for.
            write_table(Path(trainer.run_dir), TITLE, COLUMNS, self.rows[::-1])

    def _continued(self, model: nn.Module, prompt: str, device: torch.device) -> str:
        inputs = self._tokenizer(prompt, return_tensors="pt").to(device)
        padding = self._tokenizer.pad_token_id
        options = {"pad_token_id": self._tokenizer.eos_token_id if padding is None else padding, **self._options}
        tokens = model.generate(**inputs, **options)[0]  # type: ignore[operator]
        if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            tokens = tokens[inputs["input_ids"].shape[1] :]
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def state_dict(self) -> dict[str, Any]:
        """Return the samples so far."""
        return {"rows": [list(row) for row in self.rows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the samples back."""
        self.rows = [(int(step), str(prompt), str(text)) for step, prompt, text in state["rows"]]
