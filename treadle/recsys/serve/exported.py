"""A recommender as a folder without the model's code: a program, tokens, and what users did; and its answers."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from treadle.checkpoint import read_file, write_file
from treadle.checkpoint.format.program import export_onnx, export_program
from treadle.errors import CheckpointError, ConfigError, DataError, importing
from treadle.files.atomic_io import replace_file
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.sampling.user_items import UserItems
from treadle.recsys.data.sequential_dataset import SequentialDataset
from treadle.recsys.data.tables.id_map import Vocabulary
from treadle.recsys.enums import FeatureType
from treadle.recsys.optional import pyarrow
from treadle.recsys.serve.answers import Answers, Similarities
from treadle.recsys.serve.fold_in import FoldedVectors
from treadle.recsys.serve.programs import Scoring, describe, scoring_of
from treadle.recsys.serve.queries import Catalogue
from treadle.recsys.serve.recommender import Recommender

FACTS = "export.json"
"""The file that is written last: a folder with it is whole."""
FORMAT = "treadle-recommender-1"
PROGRAMS = {"onnx": "model.onnx", "torch.export": "model.pt2"}
STATE = "data.safetensors"
PAIRS_AT_ONCE = 1 << 17
"""How many pairs of a user and an item are scored at a time, where a program scores rows."""


def export_recommender(recommender: Recommender, folder: str | os.PathLike[str], format: str = "onnx") -> Path:
    """Write a recommender as a folder that needs neither the model's code nor the data.

    The program is compared with the model, and written only if it computes the same to 1e-5.

    Args:
        recommender: The recommender.
        folder: The folder; one that is an export already is replaced.
        format: "onnx", or "torch.export".

    Raises:
        ConfigError: The model cannot be exported so; the message says why. Or the folder holds something else.
        CheckpointError: It cannot be written.
        MissingDependencyError: A package of the extra `onnx` is not installed.
    """
    if format not in PROGRAMS:
        raise ConfigError(f"format={format!r} does not exist; there are {', '.join(PROGRAMS)}")
    target = Path(folder)
    if target.exists() and not (target / FACTS).is_file():
        raise ConfigError(f"{target} is there and is no export; name another folder")
    scoring = scoring_of(recommender)
    part = target.with_name(target.name + ".part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        _write(recommender, scoring, part, format)
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)
    except OSError as error:
        raise CheckpointError(f"cannot write {target}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _write(recommender: Recommender, scoring: Scoring, folder: Path, format: str) -> None:
    example = {name: tensor.cpu() for name, tensor in scoring.example.items()}
    write = export_onnx if format == "onnx" else export_program
    module = scoring.module.eval()
    place = recommender.device
    with recommender.looking():
        try:
            write(module.cpu(), example, folder / PROGRAMS[format])
        except ConfigError as error:
            name = type(recommender.model).__name__
            told = str(error).partition("; export its weights")[0].replace(type(module).__name__, name)
            raise ConfigError(told) from error
        finally:
            module.to(place)
        vectors = {of: _vectors(recommender, of) for of in ("item", "user")}
    users, items = recommender.users, recommender.items
    _write_tokens(folder / "users.arrow", users, vectors["user"] if scoring.kind == "vectors" else None)
    _write_tokens(folder / "items.arrow", items, vectors["item"])
    write_file(folder / STATE, _state(recommender, scoring))
    facts = {
        "format": FORMAT,
        "model": type(recommender.model).__name__,
        "program": PROGRAMS[format],
        "kind": scoring.kind,
        "inputs": describe(example),
        "user_field": users.field,
        "item_field": items.field,
        "repeatable": bool(recommender.repeatable),
    }
    replace_file(folder / FACTS, lambda temporary: temporary.write_text(json.dumps(facts, indent=2) + "\n"))


def _vectors(recommender: Recommender, of: str) -> Tensor | None:
    try:
        return recommender.vectors(of).float().cpu()
    except ConfigError:
        return None


def _write_tokens(file: Path, tokens: Vocabulary, vectors: Tensor | None) -> None:
    arrow = pyarrow()
    columns = {tokens.field: tokens.arrow_tokens.cast(arrow.string())}
    if vectors is not None:
        flat = arrow.array(np.ascontiguousarray(vectors.numpy()).reshape(-1))
        columns["embedding"] = arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    arrow.feather.write_feather(arrow.table(columns), str(file), compression="uncompressed")


def _state(recommender: Recommender, scoring: Scoring) -> dict[str, Any]:
    """Return what the answers go by besides the program, as tensors and plain data."""
    data = recommender.dataset
    known, folded = recommender.known, scoring.folded
    every = torch.arange(len(recommender.users), device=recommender.device)
    state: dict[str, Any] = {
        "known": known.keys,
        "popularity": recommender.popularity,
        "warm": recommender.can_score(every),
        "folded": None if folded is None else [folded.form, folded.confidence, folded.penalty, folded.times],
        "no_history": _reason(lambda: recommender.history_scorer()),
        "no_similarity": _reason(lambda: recommender.similarities()),
        "own_similarity": hasattr(recommender.model, "item_similarities"),
        "columns": {},
        "features": _features(recommender.catalogue),
    }
    if isinstance(data, SequentialDataset) and data.flat is not None:
        state["sequence_users"], state["sequence"] = data.flat[str(data.uid_field)], data.flat[str(data.iid_field)]
    elif scoring.kind == "history":
        state["trained_users"], state["trained"] = data.user_item_pairs()
    if scoring.kind == "rows":
        for owner, table in (("user", data.get_user_feature()), ("item", data.get_item_feature())):
            columns = {name: column for name, column in table.interaction.items() if name in scoring.example}
            state["columns"][owner] = columns
    return state


def _reason(asked: Callable[[], object]) -> str:
    try:
        asked()
    except ConfigError as error:
        return str(error)
    return ""


def _features(catalogue: Catalogue) -> dict[str, Any]:
    return {
        name: {
            "values": column,
            "type": catalogue.types[name].value,
            "tokens": catalogue.tokens_of(name),
            "changed": catalogue.changed.get(name, ""),
        }
        for name, column in catalogue.features.items()
    }


class ExportedRecommender(Answers):
    """Answers with what `export_recommender` wrote, on the CPU.

    Args:
        folder: The folder.

    Raises:
        CheckpointError: It is no export, or damaged.
        ConfigError: Its program is none of ONNX.
        MissingDependencyError: onnxruntime is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        place = Path(folder)
        self.facts = _read_facts(place)
        if self.facts["program"] != PROGRAMS["onnx"]:
            raise ConfigError(
                f"{place} holds {self.facts['program']}, which torch.export.load reads; answers are given with ONNX: "
                "export it with format onnx"
            )
        with importing("onnxruntime", extra="onnx", user="an exported recommender"):
            import onnxruntime
        state = read_file(place / STATE)
        users, self._user_vectors = _read_tokens(place / "users.arrow", self.facts["user_field"])
        items, self._item_vectors = _read_tokens(place / "items.arrow", self.facts["item_field"])
        cpu = torch.device("cpu")
        catalogue = _catalogue_of(items, state["features"], cpu)
        super().__init__(users, items, catalogue, repeatable=self.facts["repeatable"], device=cpu)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        try:
            self._session = onnxruntime.InferenceSession(
                str(place / self.facts["program"]), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has errors of its own for each way in which a file may be wrong
            raise CheckpointError(f"{place / self.facts['program']} is damaged: {error}") from error
        self._taken = {one.name for one in self._session.get_inputs()}
        self._state, self._kind = state, self.facts["kind"]
        self._known = UserItems.__new__(UserItems)
        self._known._keep(state["known"], len(users), len(items), 1)
        self.folded = self._fold()

    def user_vectors(self) -> Tensor:
        """Return the vector of each user id, of a program of vectors.

        Raises:
            ConfigError: The program goes by something else.
        """
        if self._user_vectors is None:
            raise ConfigError(f"{self.facts['model']} was exported without vectors of users")
        return self._user_vectors

    def _fold(self) -> FoldedVectors | None:
        if self._state["folded"] is None or self._item_vectors is None:
            return None
        form, confidence, penalty, times = self._state["folded"]
        return FoldedVectors(self._item_vectors, form, confidence, penalty, times)

    def _run(self, **inputs: Tensor) -> Tensor:
        arrays = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in inputs.items() if name in self._taken}
        (found,) = self._session.run(None, arrays)
        return torch.from_numpy(found)

    # What gives the scores ----------------------------------------------------------------------------------

    @property
    def known(self) -> UserItems:
        """What each user has in any part of the data."""
        return self._known

    @property
    def popularity(self) -> Tensor:
        """How often each item was used in training."""
        counts: Tensor = self._state["popularity"]
        return counts

    def looking(self) -> AbstractContextManager[None]:
        """Return a block without gradients."""
        return torch.no_grad()

    def can_score(self, users: Tensor) -> Tensor:
        """Return of which users the program knows something."""
        warm: Tensor = self._state["warm"][users]
        return warm

    def score_users(self, users: Tensor) -> Tensor:
        """Return the scores of all items for users."""
        if self._kind == "vectors":
            assert self._user_vectors is not None
            return self._run(vectors=self._user_vectors[users])
        if self._kind == "users":
            return self._run(users=users)
        if self._kind == "rows":
            return self._score_rows(users)
        return self.score_histories([self._past(int(user)) for user in users], users)

    def _past(self, user: int) -> Tensor:
        owners, items = ("sequence_users", "sequence") if self._kind == "sequence" else ("trained_users", "trained")
        if owners not in self._state:
            raise DataError("recommending goes by the interactions of users, and this data brings histories instead")
        found: Tensor = self._state[items][self._state[owners] == user]
        return found

    def score_histories(self, histories: Sequence[Tensor], users: Tensor) -> Tensor:
        """Return the scores of all items for histories."""
        if self._state["no_history"]:
            raise ConfigError(self._state["no_history"])
        if self.folded is not None:
            return self._run(vectors=self.folded.vectors(histories))
        if self._kind == "sequence":
            return self._score_sequences(histories)
        rows = torch.zeros(len(histories), len(self.items))
        for row, past in zip(rows, histories, strict=True):
            row[past] = 1
        return self._run(history=rows)

    def _score_sequences(self, histories: Sequence[Tensor]) -> Tensor:
        (width,) = self.facts["inputs"]["items"][1]
        items = torch.zeros(len(histories), width, dtype=torch.int64)
        for row, past in zip(items, histories, strict=True):
            row[: min(width, len(past))] = past[-width:]
        return self._run(items=items, lengths=torch.tensor([min(width, len(past)) for past in histories]))

    def _score_rows(self, users: Tensor) -> Tensor:
        of_users, of_items = (Interaction(self._state["columns"][owner]) for owner in ("user", "item"))
        number = len(self.items)
        parts = []
        for some in torch.split(users, max(1, PAIRS_AT_ONCE // number)):
            pairs = of_users[some].repeat_interleave(number)
            pairs.update(of_items.repeat(len(some)))
            parts.append(self._run(**pairs.interaction).view(len(some), number))
        return torch.cat(parts)

    def similarities(self) -> Similarities:
        """Return what compares items."""
        if self._state["no_similarity"]:
            raise ConfigError(self._state["no_similarity"])
        if self._state["own_similarity"]:
            number = len(self.items)
            return lambda ids: self._run(history=functional.one_hot(ids, number).float())
        assert self._item_vectors is not None
        vectors = functional.normalize(self._item_vectors, dim=1)
        return lambda ids: vectors[ids] @ vectors.T


def _read_facts(folder: Path) -> dict[str, Any]:
    try:
        facts = json.loads((folder / FACTS).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} is no exported recommender: {error}") from error
    wanted = {"format": str, "program": str, "kind": str, "inputs": dict, "user_field": str, "item_field": str}
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise CheckpointError(f"{folder} is no exported recommender of this version; export it again")
    for name, kind in {**wanted, "repeatable": bool}.items():
        if not isinstance(facts.get(name), kind):
            raise CheckpointError(f"{folder / FACTS} was edited: its {name} is no {kind.__name__}; export it again")
    if facts["program"] not in PROGRAMS.values():
        raise CheckpointError(f"{folder / FACTS} was edited: there is no program {facts['program']!r}; export it again")
    return facts


def _read_tokens(file: Path, field: str) -> tuple[Vocabulary, Tensor | None]:
    arrow = pyarrow()
    try:
        table = arrow.feather.read_table(str(file), memory_map=True)
        tokens = Vocabulary(field, table[field].combine_chunks())
    except (OSError, KeyError, arrow.ArrowInvalid) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from error
    if "embedding" not in table.column_names:
        return tokens, None
    lists = table["embedding"].combine_chunks()
    flat = lists.values.to_numpy(zero_copy_only=False)
    return tokens, torch.from_numpy(flat.reshape(len(tokens), lists.type.list_size).copy())


def _catalogue_of(items: Vocabulary, features: dict[str, Any], device: torch.device) -> Catalogue:
    arrow = pyarrow()
    columns = {name: one["values"] for name, one in features.items()}
    types = {name: FeatureType(one["type"]) for name, one in features.items()}
    tokens = {name: Vocabulary(name, arrow.array(one["tokens"])) for name, one in features.items() if one["tokens"]}
    changed = {name: one["changed"] for name, one in features.items() if one["changed"]}
    table = Interaction(columns) if columns else None
    return Catalogue(items, table, types, tokens, changed, device)
