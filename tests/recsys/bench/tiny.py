"""A small data set on disk, and benchmarks on it."""

from pathlib import Path
from typing import Any

from tests.recsys.data.small import write_table
from tests.recsys.trainer.runs import graph, interactions
from treadle.recsys.bench import Benchmark, Protocol

HERE = "tests.recsys.bench.contestants"
TYPES = {"user_id": "token", "item_id": "token", "rating": "float", "timestamp": "float"}


def write_columns(place: Path, name: str, table: dict[str, list[Any]], types: dict[str, str]) -> None:
    header = [f"{column}:{types[column]}" for column in table]
    write_table(place, name, header, zip(*table.values(), strict=True))


def write_data(folder: Path) -> Path:
    """Write the data set `tiny`, with a knowledge graph of all items but one, and return where it is."""
    place = folder / "data" / "tiny"
    known = graph()
    link = {name: values[1:] for name, values in known["link"].items()}
    tokens = dict.fromkeys([*known["kg"], *link], "token")
    write_columns(place, "tiny.inter", interactions(), TYPES)
    write_columns(place, "tiny.kg", known["kg"], tokens)
    write_columns(place, "tiny.link", link, tokens)
    return place.parent


def settings(folder: Path, **given: Any) -> dict[str, Any]:
    return {
        "data_path": str(write_data(folder)),
        "metrics": ["NDCG", "Recall"],
        "topk": [5],
        "valid_metric": "NDCG@5",
        "train_batch_size": 64,
        "epochs": 2,
        "use_gpu": False,
        "load_col": {
            "inter": list(TYPES),
            "kg": ["head_id", "relation_id", "tail_id"],
            "link": ["item_id", "entity_id"],
        },
        "embedding_size": 8,
        **given,
    }


def protocol(folder: Path, models: list[str], **given: Any) -> Protocol:
    return Protocol(models, "tiny", config_dict=settings(folder, **given))


def benchmark(folder: Path, models: list[str], *, seeds: tuple[int, ...] = (), **given: Any) -> Benchmark:
    """Return a benchmark that trains in this process."""
    return Benchmark(protocol(folder, models, **given), folder / "bench", seeds=seeds, isolated=False)
