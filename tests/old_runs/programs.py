"""Eight small runs, each through another door or another way of training, to be killed and gone on with.

`python -m tests.old_runs` makes the fixtures: runs that were killed, and how they end if they are not. It was run
before the inside of the trainer was made anew; what it made then must go on exactly ever after, and is not made again.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

from tests.engine.parts import make_config
from tests.golden.core_programs import network, one_cycle, samples
from tests.golden.recording import digest
from tests.interrupting import CutError, tensors_of
from tests.nas import small as space
from tests.recsys.trainer import runs
from tests.search.support import Killed, letters, vowels, without_clocks
from treadle import Trainer, TrainerCallback, nas
from treadle.callbacks import ModelEmaCallback
from treadle.engine import DefaultTrainer, HookBase
from treadle.parallel import Plan
from treadle.parallel.state_dict import gather_state
from treadle.precision import LossScaling

RUN = "run"
OUTCOME = "outcome.json"
CUT = 5
"""After how many updates each run is killed: inside an epoch."""


class Watch(TrainerCallback):
    """Counts the updates of this start, notes where it began, and dies once so many are made in all."""

    def __init__(self, cut: int | None) -> None:
        self.cut, self.made, self.began = cut, 0, -1

    def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
        if self.began < 0:
            self.began = trainer.progress.step

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self.made += 1
        if trainer.progress.step == self.cut:
            raise CutError


class HookWatch(HookBase):
    """The same for the engine."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def before_train(self) -> None:
        self.watch.began = self.trainer.iter

    def before_step(self) -> None:
        self.watch.made += 1

    def after_step(self) -> None:
        if self.trainer.iter + 1 == self.watch.cut:
            raise CutError


def core(folder: Path, watch: Watch, **options: Any) -> Any:
    model = network()
    average = ModelEmaCallback(decay=0.9, save_path=folder / "average.pt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = Trainer(
        model,
        nn.CrossEntropyLoss(),
        optimizer,
        callbacks=(average, watch),
        run_dir=folder / RUN,
        seed=1,
        device="cpu",
        **options,
    )
    result = trainer.train(
        samples(24),
        3,
        eval_dataset=samples(9),
        per_device_batch_size=2,
        gradient_accumulation_steps=2,
        create_scheduler_fn=one_cycle(),
        clip_norm=0.5,
        log_every=2,
        save_every=1,
        resume="auto",
    )
    # Gathered by all processes where each has a part.
    return {"model": gather_state(model), "history": result.history, "steps": result.steps}


def fp16(folder: Path, watch: Watch) -> Any:
    return core(folder, watch, precision="fp16", loss_scaling=LossScaling(initial=2.0**10))


def sharded(folder: Path, watch: Watch) -> Any:
    return core(folder, watch, parallel=Plan(shard=2))


def engine(folder: Path, watch: Watch) -> Any:
    config = make_config(folder / RUN, seed=1, checkpointer={"period": 1}, resume=True)
    config.model.dropout = 0.2
    trainer = DefaultTrainer(config)
    trainer.register_hooks([HookWatch(watch)])
    trainer.train()
    return {"model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict()}


def recommender(folder: Path, watch: Watch) -> Any:
    made = runs.make(folder, "BPR", watch, run_dir=str(folder / RUN), save_every=1, learning_rate=0.01)
    made.fit()
    return runs.state_of(made.trainer)


def one_shot(folder: Path, watch: Watch) -> Any:
    torch.manual_seed(5)
    trainer = space.make(
        nas.DartsTrainer,
        run_dir=folder / RUN,
        callbacks=(watch,),
        scheduler=lambda optimizer: StepLR(optimizer, 2, 0.9),
    )
    trainer.fit(resume="auto", save_every=1, log_every=2)
    return {"supernet": trainer.supernet.state_dict(), "architecture": trainer.export()}


def search(folder: Path, watch: Watch) -> Any:
    """A search by trials; here an update is a trial."""

    def judge(taken: dict[str, str]) -> float:
        if watch.began < 0:
            watch.began = nas.current_trial()
        if nas.current_trial() == watch.cut:
            raise Killed
        watch.made += 1
        return vowels(taken) + torch.rand(()).item()

    found = nas.Search(letters(), judge, strategy=nas.Evolution(3, 2), trials=9, run_dir=folder / RUN, seed=1).run()
    return without_clocks(found)


PROGRAMS: dict[str, Callable[[Path, Watch], Any]] = {
    "core": core,
    "core in fp16": fp16,
    "core on two processes": core,
    "core in shards": sharded,
    "engine": engine,
    "recommender": recommender,
    "one-shot search": one_shot,
    "search": search,
}
PROCESSES = {"core on two processes": 2, "core in shards": 2}


def run(name: str, folder: Path, cut: int | None) -> dict[str, Any]:
    """Run a program from wherever the run in `folder` is; return where it began, what it made and how it ended."""
    torch.set_num_threads(1)
    watch = Watch(cut)
    ended = PROGRAMS[name](folder, watch)
    return {"began": watch.began, "made": watch.made, "norm": norm_of(ended), "bits": digest(ended)}


def norm_of(ended: Any) -> float:
    """Return the norm of all numbers with fractions that a run ended in, for processors that round otherwise."""
    numbers = [leaf for leaf in tensors_of(ended).values() if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return round(sum(float(one.double().square().sum()) for one in numbers) ** 0.5, 9)


def main() -> None:
    """Run one program as `python -m tests.old_runs.programs NAME FOLDER [CUT]`; ranks write what they found."""
    name, folder, *cut = sys.argv[1:]
    found = run(name, Path(folder), int(cut[0]) if cut else None)
    if Trainer(nn.Linear(1, 1), None, None, callbacks=()).processes.is_main:
        (Path(folder) / OUTCOME).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
