"""pytorch-accelerated's trainer with its default callbacks."""

from operator import itemgetter

from pytorch_accelerated import Trainer

from benchmarks.job import LOSS_FUNC, Job

# The trainer builds its own loader and requires a batch sampler, so `batch_size=None` fails; lists of one
# ready batch, unpacked by the collate function, cost the same. Worker processes, its default, cost far more.
READY_BATCHES = {"batch_size": 1, "shuffle": False, "num_workers": 0, "pin_memory": False}


def train(job: Job) -> None:
    """Train one epoch, progress bar and printed metrics included."""
    trainer = Trainer(job.model, loss_func=LOSS_FUNC, optimizer=job.optimizer)
    trainer.train(job.batches, num_epochs=1, train_dataloader_kwargs=READY_BATCHES, collate_fn=itemgetter(0))
