"""How the batches of a map-style loader are fetched: in which order, by whom, and collated how."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler, default_collate
from torch.utils.data._utils.collate import default_convert
from torch.utils.data.distributed import DistributedSampler

from treadle.data.batch import Batch
from treadle.data.collate import Rows, WholeBatches, batch_reader, collated
from treadle.data.order import HasOrder, Order, SamplerOrder, SequentialOrder, ShuffledOrder
from treadle.data.per_sample_rng import PLAIN, PlacedSampler, SeededSamples, as_it_is
from treadle.data.sampler import PositionedBatchSampler
from treadle.data.seeds import fold_seed


class Shuffle(RandomSampler):
    """Marks a loader that the trainer made: its order comes from the run's seed and the epoch."""


def positioned_sampler(
    source: Any,
    *,
    seed: int,
    rank: int,
    size: int,
    evaluation: bool,
    share: Callable[[Any], Any] | None,
    as_torch: bool = False,
) -> PositionedBatchSampler | None:
    """Return the sampler for a map-style loader; None for anything else, which is drawn in sequence."""
    if not isinstance(source, DataLoader) or isinstance(source.dataset, IterableDataset):
        return None
    sampler, batch_sampler = source.sampler, source.batch_sampler
    batch_size, drop_last = None, False
    if type(batch_sampler) is torch.utils.data.BatchSampler:
        sampler, batch_size, drop_last = batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last
    if isinstance(sampler, DistributedSampler):
        # Somebody shared the data out already; each rank keeps its part.
        rank, size, share = 0, 1, None
    if batch_sampler is not None and batch_size is None:
        order: Order = SamplerOrder(batch_sampler, source.generator, share=share, as_torch=as_torch)
    else:
        order = _fetch_order(sampler, source, seed, share, as_torch)
    return PositionedBatchSampler(
        order, batch_size=batch_size, drop_last=drop_last, rank=rank, size=size, evaluation=evaluation
    )


def _fetch_order(
    sampler: Sampler[Any] | Iterable[Any],
    source: DataLoader[Any],
    seed: int,
    share: Callable[[Any], Any] | None,
    as_torch: bool,
) -> Order:
    data: Any = source.dataset
    if isinstance(data, HasOrder) and isinstance(sampler, Shuffle):
        return data.order(fold_seed(seed, 0))
    if isinstance(data, HasOrder) and type(sampler) is SequentialSampler:
        return data.in_sequence()
    if isinstance(sampler, Shuffle):
        return ShuffledOrder(len(source.dataset), fold_seed(seed, 0))  # type: ignore[arg-type]
    if type(sampler) is SequentialSampler:
        return SequentialOrder(len(source.dataset))  # type: ignore[arg-type]
    return SamplerOrder(sampler, source.generator, share=share, as_torch=as_torch)


def is_plain(source: Any, *, pins: bool) -> bool:
    """Whether a loader only fetches and collates, in this process, as torch's own does.

    Args:
        source: The loader.
        pins: Whether somebody else pins the memory, if the loader is asked to.
    """
    return type(source) is DataLoader and source.num_workers == 0 and (pins or not source.pin_memory)


def loader_rows(source: Any, dataset: Any) -> Rows | None:
    """Return the rows that the batches of a loader are made of; None if its samples are fetched one by one."""
    if isinstance(dataset, SeededSamples) or source.batch_sampler is None or source.collate_fn not in PLAIN:
        return None
    return batch_reader(dataset)


def fetched_here(source: Any, dataset: Any, sampler: PositionedBatchSampler) -> Iterator[Batch]:
    """Fetch and collate the batches of `sampler` in this process.

    The same as iterating over the loader, without its bookkeeping: a profiler label and a few calls per batch,
    which cost more than the rest of the trainer.
    """
    rows = loader_rows(source, dataset)
    if rows is not None:
        indices = sampler.tensors()
        return map(WholeBatches(dataset, rows).__getitems__, sampler) if indices is None else map(rows, indices)
    return _one_by_one(source, dataset, sampler)


def _one_by_one(source: Any, dataset: Any, sampler: PositionedBatchSampler) -> Iterator[Batch]:
    seeded = isinstance(dataset, SeededSamples)
    places = PlacedSampler(sampler) if seeded else sampler
    collate = as_it_is if seeded else collated if source.collate_fn is default_collate else source.collate_fn
    if source.batch_sampler is None:
        for index in places:
            sample = dataset[index]
            # What torch's own conversion makes of a ready batch, without looking into it.
            ready = collate is default_convert and type(sample) in (list, tuple) and all(map(_is_tensor, sample))
            yield list(sample) if ready else collate(sample)
        return
    together = getattr(dataset, "__getitems__", None)
    for indices in places:
        yield collate(together(indices) if together else [dataset[index] for index in indices])


def _is_tensor(value: Any) -> bool:
    return type(value) is Tensor


def rebuilt(source: Any, dataset: Any, sampler: PositionedBatchSampler) -> DataLoader[Any]:
    """Return a loader like `source` that draws through `sampler` and touches no global generator."""
    seeded = isinstance(dataset, SeededSamples)
    rows = loader_rows(source, dataset)
    places: Any = PlacedSampler(sampler) if seeded else sampler
    chosen: dict[str, Any] = {"batch_sampler": places}
    if source.batch_sampler is None:
        chosen = {"batch_size": None, "sampler": places}
    if source.num_workers > 0:
        chosen |= {
            "prefetch_factor": source.prefetch_factor,
            "persistent_workers": source.persistent_workers,
            "multiprocessing_context": source.multiprocessing_context,
        }
    return DataLoader(
        dataset if rows is None else WholeBatches(dataset, rows),
        num_workers=source.num_workers,
        collate_fn=source.collate_fn if rows is None and not seeded else as_it_is,
        pin_memory=source.pin_memory,
        timeout=source.timeout,
        worker_init_fn=source.worker_init_fn,
        generator=torch.Generator(),
        **chosen,
    )
