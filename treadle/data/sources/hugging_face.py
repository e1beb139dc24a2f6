"""Data sets of Hugging Face's `datasets`, as sources."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treadle.data.sources.source import IndexedSource
from treadle.errors import DataError


class HuggingFace(IndexedSource):
    """Samples of a `datasets.Dataset`, which has an index; one that is streamed is a `HuggingFaceStream`.

    Args:
        dataset: The data set; give it a format, such as `with_format("torch")`, to have tensors.
        transform: Makes a sample of a row; None leaves it as it is.

    Raises:
        DataError: It is no such data set, or it is empty.
    """

    def __init__(self, dataset: Any, *, transform: Callable[[Any], Any] | None = None) -> None:
        super().__init__(transform=transform)
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and hasattr(dataset, "features")):
            advice = "; it is a dict of them: choose one, such as ['train']" if isinstance(dataset, Mapping) else ""
            advice = "; it is streamed: use HuggingFaceStream" if hasattr(dataset, "n_shards") else advice
            raise DataError(f"HuggingFace({type(dataset).__name__}) is no datasets.Dataset{advice}")
        self.dataset = dataset
        if not len(dataset):
            raise DataError("HuggingFace: the data set is empty; give it at least one row")

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Return the rows at `indices`."""
        rows: list[Any] = self.dataset.__getitems__(list(indices))
        return rows

    def fingerprint(self) -> Mapping[str, Any]:
        """Return what `datasets` knows the data set by."""
        return {"fingerprint": str(getattr(self.dataset, "_fingerprint", "unknown"))}
