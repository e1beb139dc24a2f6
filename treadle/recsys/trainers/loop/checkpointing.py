"""The verbs of a trainer that keep a model and a run, and bring them back."""

from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from treadle.checkpoint import CheckpointStore, Policy
from treadle.checkpoint.model_state import plain_state_dict
from treadle.checkpoint.tracked import explaining_mismatch
from treadle.errors import CheckpointError, ConfigError
from treadle.optim.state import OptimizerState
from treadle.recsys.trainers.loop.core import CoreOptions, RecsysCore, find_optimizers
from treadle.recsys.trainers.loop.epoch_end import BestState
from treadle.recsys.trainers.loop.evaluation import EvaluationTrainer
from treadle.recsys.trainers.loop.model_file import (
    FORMAT,
    SUFFIX,
    OtherParameters,
    check_tokens,
    copy_weights,
    new_name,
    read_model_file,
    reserve,
    storable,
)
from treadle.recsys.trainers.results import decoded_metrics, encoded_metrics
from treadle.runs.mirror import working_folder
from treadle.runs.place import is_moved, run_place

OWN_STATE = ("model", "other_parameter")
"""What of the state of a run stands in the file of a model under a name of its own, beside the optimizers."""


class CheckpointTrainer(EvaluationTrainer):
    """Keeps the best model in a file and the run in a folder beside it.

    Attributes:
        saved_model_file: The file of the best model. It and the folder of the run, which has the same name without
            the suffix, are made by `fit`; with `run_dir` the file is in that folder.
        checkpoint_dir: Where such files are.
        start_epoch: The first epoch of a `fit`.
        cur_step: Evaluations since the best one.
        best_valid_score, best_valid_result: The best evaluation of the training.
        train_loss_dict: The loss of each epoch, the sum over its batches.
    """

    optimizer: Any
    _train_data: Any
    best_valid_score: float
    best_valid_result: Any
    train_loss_dict: dict[int, float]

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        self.checkpoint_dir = str(config["checkpoint_dir"])
        self.start_epoch = self.cur_step = 0
        self._proposed = str(Path(self.checkpoint_dir) / (self._processes.share(new_name(config["model"])) + SUFFIX))
        self.saved_model_file = self._proposed
        self._standing = BestState(self)
        self._tracked: dict[str, Any] = {}
        self._core: RecsysCore | None = None
        self._resumed_file: Path | None = None
        self._rate_factor = 1.0

    @property
    def run_dir(self) -> Path | None:
        """The folder of the last `fit`; None before it, and where nothing is kept."""
        return None if self._core is None else self._core.run_dir

    def track(self, **objects: Any) -> Any:
        """Save each object with every checkpoint of a run, under its keyword; returns the trainer.

        Each has `state_dict` and `load_state_dict`. Call it before `fit`.
        """
        self._tracked.update(objects)
        return self

    def _save_checkpoint(self, epoch: int, verbose: bool = True, **kwargs: Any) -> None:
        """Write the model and the training to a file, so that it can be evaluated, used and gone on from.

        Args:
            epoch: The epoch that has just ended.
            verbose: Whether to say so.
            **kwargs: `saved_model_file` is another file.
        """
        path = str(kwargs.pop("saved_model_file", self.saved_model_file))
        state = self._file_state(epoch)
        if self._processes.is_main:
            self._files.write(path, state)
        if verbose:
            self._say(f"Saving current: {path}")

    def _say(self, message: str) -> None:
        if self._core is not None:
            self._core.print(message)
        else:
            self.logger.info(message)

    def _file_state(self, epoch: int) -> dict[str, Any]:
        optimizers = self._named_optimizers()
        state = {
            "format": FORMAT,
            "model": self.config.model,
            "located_at": vars(self.config.model_class).get("located_at"),
            "dataset": self.config.dataset,
            "fingerprints": self._fingerprints(),
            "config": storable(self.config.plain()),
            "epoch": epoch,
            "cur_step": self.cur_step,
            "best_valid_score": self.best_valid_score,
            "best_valid_result": encoded_metrics(self.best_valid_result),
            "train_loss_dict": dict(self.train_loss_dict),
            "state_dict": plain_state_dict(self.model),
            "other_parameter": OtherParameters(self.model, self.device).state_dict(),
            "optimizer": {name: OptimizerState(one, self.model).state_dict() for name, one in optimizers.items()},
        }
        if self._rate_factor != 1.0:
            state["rate_factor"] = self._rate_factor
        if self._core is not None and self._core_runs and not self._core.options.alone:
            run = self._core.finished_state(epoch)
            kept = {name: own for name, own in run["tracked"].items() if name not in (*OWN_STATE, *optimizers)}
            state["run"] = {"processes": run["processes"], "tracked": kept}
            state["ranks"] = self._processes.gather_objects(self._core.local_state(run))
        return state

    def _fingerprints(self) -> dict[str, str]:
        """Return what tells the users and items that are trained on from others, where the data says it."""
        return dict(getattr(getattr(self._train_data, "dataset", None), "fingerprints", {}))

    def _named_optimizers(self) -> dict[str, Optimizer]:
        found = find_optimizers(self)
        return found if isinstance(found, dict) else {"optimizer": found}

    def _remember_best(self) -> None:
        """Keep the best model in memory, where no file is wanted."""
        others = OtherParameters(self.model, self.device).state_dict()
        self._best = (copy_weights(plain_state_dict(self.model)), others)

    def _name_best(self, earlier: str) -> None:
        """Go back to the file of an earlier `fit`, if no model since then was better than the one in there."""
        here = [Path(name).exists() for name in (self.saved_model_file, earlier)]
        if self._processes.share(here == [False, True]):
            self.saved_model_file = self._proposed = earlier

    # Going on -----------------------------------------------------------------------------------------------

    def resume_checkpoint(self, resume_file: Any) -> None:
        """Have the next `fit` go on from a file that a `fit` saved, or from the folder of its run.

        Weights, optimizers, the best score and the epoch are taken from the file at once. If the folder of the run is
        beside it, `fit` goes on from the newest checkpoint in there: from the epoch, or the middle of the epoch, at
        which the run ended. Without it, it goes on from the epoch of the file. Data whose users or items have other
        tokens than those it was trained with is refused by `fit`.

        Raises:
            CheckpointError: The file is damaged, or of another model.
        """
        path = Path(resume_file)
        if path.is_dir():
            path = path.with_name(path.name + SUFFIX)
            if not path.exists():
                # A run that was cut before its first evaluation has no best model.
                self.saved_model_file, self._resumed_file = str(path), path
                return
        state = read_model_file(path)
        if state.get("model") != self.config.model:
            raise CheckpointError(
                f"{path} is of the model {state.get('model')}, and this trainer's is {self.config.model}"
            )
        with explaining_mismatch(f"the training in {path}"):
            self._load_training_state(state, path)
        self._resumed_file = path
        self.logger.info("Checkpoint loaded. Resume training from epoch %d", self.start_epoch)

    def _load_training_state(self, state: dict[str, Any], path: Path) -> None:
        """Take weights, optimizers, scores and the epoch of a file."""
        self._take_weights(state, str(path))
        for name, optimizer in self._named_optimizers().items():
            if name not in state["optimizer"]:
                raise CheckpointError(f"{path} has no optimizer {name!r}; it has {sorted(state['optimizer'])}")
            OptimizerState(optimizer, self.model).load_state_dict(state["optimizer"][name])
        self.saved_model_file, self._best = str(path), None
        self._rate_factor = float(state.get("rate_factor", 1.0))
        self.start_epoch = int(state["epoch"]) + 1
        self.cur_step = int(state["cur_step"])
        self.best_valid_score = float(state["best_valid_score"])
        self.best_valid_result = decoded_metrics(state["best_valid_result"])
        self.train_loss_dict = dict(state["train_loss_dict"])

    def _run_state_in_file(self, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the state of a run in the file of a model: what all processes share, and what is this one's."""
        state = read_model_file(path)
        tracked = {**state["run"]["tracked"], "model": state["state_dict"], **state["optimizer"]}
        if getattr(self.model, "other_parameter_name", ()):
            tracked["other_parameter"] = state["other_parameter"]
        shared = {"processes": state["run"]["processes"], "tracked": tracked}
        own = {"processes": shared["processes"], "tracked": {**tracked, **state["ranks"][self._processes.rank]}}
        return shared, own

    def _core_options(self, *, saved: bool, verbose: bool, show_progress: bool) -> CoreOptions:
        """Return where this `fit` is kept, and what it goes on from."""
        folder = self.config["run_dir"]
        resumed = self._resumed_file
        usable = None if resumed is None else self._usable(resumed)
        # What was refused is refused again, if somebody tries again: the weights are of the file already.
        self._resumed_file = None
        chosen = folder is not None
        if chosen:
            own = working_folder(str(folder))
            path: Path | None = own
            if resumed is None:
                self.saved_model_file = str(own / f"{self.config.model}{SUFFIX}")
        elif resumed is not None:
            path = resumed.with_suffix("") if saved else None
            chosen = path is not None
        else:
            path = self._new_folder() if saved else None
        return CoreOptions(
            run_dir=path,
            resume=chosen,
            resume_from=usable,
            save_every=self.config["save_every"],
            verbose=verbose,
            show_progress=show_progress,
        )

    def _new_folder(self) -> Path:
        """Make a folder for a run that begins, and name the file of its model."""
        named = Path(self.saved_model_file)
        own = self.saved_model_file == self._proposed
        if is_moved():
            place = run_place(named.with_suffix(""), chosen=False)
            self.saved_model_file = str(place) + SUFFIX
            return place
        path = Path(self._processes.share(str(reserve(named.parent, named.stem)) if self._processes.is_main else None))
        if own:
            # The next run of this trainer gets a name of its own.
            self.saved_model_file = self._proposed = str(path) + SUFFIX
        return path

    def _usable(self, path: Path) -> Path | None:
        """Return a file if a run can go on from it exactly; otherwise it goes on with weights and optimizer alone."""
        if not path.exists():
            return None
        state = read_model_file(path)
        check_tokens(state, getattr(self._train_data, "dataset", None), path)
        run = state.get("run")
        if run is not None and run["processes"] == self._processes.size:
            return path
        why = "was saved outside a run" if run is None else f"was saved by {run['processes']} processes"
        self.logger.warning("%s %s: weights and optimizer are taken from it, random numbers begin anew", path, why)
        return None

    def _has_run_in_folder(self, options: CoreOptions) -> bool:
        if options.run_dir is None or not options.resume:
            return False
        steps = CheckpointStore(options.run_dir / "checkpoints", Policy()).steps()
        return bool(self._processes.share(bool(steps)))

    def _require_names(self) -> None:
        reserved = {"model", "optimizer", "progress", "history", "losses", "callbacks", "random", "precision"}
        wrong = sorted(set(self._tracked) & reserved)
        if wrong:
            raise ConfigError(f"track({wrong[0]}=...): the run has something of this name already; choose another")
