"""Every setting that starts from another value than RecBole's stands in a table of the docs, and no other."""

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from treadle.recsys import ModelType, compat, get_model
from treadle.recsys.config.defaults import MERGED, default_settings, merge, read_settings_file

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "migrating-from-recbole.md"
HEADING = "| models | setting | RecBole | here | why |"
ABSENT = "absent"
THEIRS: dict[str, Any] = read_settings_file(HERE / "recbole_defaults.yaml")
MODELS: dict[str, dict[str, Any]] = THEIRS["models"]
LIKE_CONTEXT = (ModelType.CONTEXT, ModelType.DECISIONTREE)
Difference = tuple[str, str, Any, Any]


def theirs_of(model: str, kind: ModelType) -> dict[str, Any]:
    """Return what a model starts from in RecBole: the later layer wins."""
    settings: dict[str, Any] = {}
    layers = [THEIRS["overall"], MODELS[model], THEIRS["sample"]]
    layers += [THEIRS["context"]] if kind in LIKE_CONTEXT else []
    layers += [THEIRS[kind.name.lower()]] if kind in (ModelType.SEQUENTIAL, ModelType.KNOWLEDGE) else []
    layers += [THEIRS["DIN_and_DIEN"]] if model in ("DIN", "DIEN") else []
    for layer in layers:
        merge(settings, layer)
    return settings


def flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings whose parts stand by names of their own; to group by 'none' is to group by nothing."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if name in MERGED and isinstance(value, dict):
            found |= {f"{name}.{part}": None if own == "none" else own for part, own in value.items()}
        else:
            found[name] = value
    return found


def differences(model: str) -> list[Difference]:
    """Return where a model starts from something else than in RecBole."""
    kind = get_model(model)
    ours = default_settings(kind.type.name.lower(), [one.__name__ for one in kind.__mro__], "anything")
    no_negatives = ours["train_neg_sample_args"] is None
    mine, found = flat(ours), []
    for name, value in flat(theirs_of(model, kind.type)).items():
        if name.startswith("train_neg_sample_args.") and no_negatives:
            continue  # fitted in closed form: no negative is drawn for it in RecBole, either
        own = mine.get(name, ABSENT)
        if value != own:
            found.append((model, name, value, own))
    return found


def table() -> list[Difference]:
    """Return what the page says."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = lines[lines.index(HEADING) + 2 :]
    found: list[Difference] = []
    for row in rows[: rows.index("")]:
        models, setting, left, right, _ = (cell.strip() for cell in row.strip("|").split("|"))
        values = [ABSENT if cell == ABSENT else yaml.safe_load(cell.strip("`")) for cell in (left, right)]
        names = (one.strip("` ") for one in models.split(","))
        found += [(name, setting.strip("`"), values[0], values[1]) for name in names]
    return found


def test_every_default_that_is_not_recboles_is_documented_and_every_documented_one_is_so() -> None:
    found = [one for model in MODELS for one in differences(model)]
    assert len(MODELS) > 40
    key = lambda one: (one[0], one[1])  # noqa: E731
    assert sorted(table(), key=key) == sorted(found, key=key)


@pytest.mark.skipif(compat.find_package() is None, reason="RecBole is not installed; TREADLE_RECBOLE names its folder")
def test_what_is_compared_with_is_what_recbole_has() -> None:
    package = compat.find_package()
    assert package is not None
    properties = package / "properties"
    assert read_settings_file(properties / "overall.yaml") == THEIRS["overall"]
    for model, settings in MODELS.items():
        name = model.lower() if model in ("LightGBM", "XGBoost") else model
        assert read_settings_file(properties / "model" / f"{name}.yaml") == settings, model
