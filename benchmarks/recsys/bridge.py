"""RecBole's own models, imported from its package, under Treadle's data, trainer and evaluation.

    make bench-bridge        # or, once .venv-recbole is there: python -m benchmarks.recsys.bridge --write

Each model is trained on ml-100k for two epochs at one seed, in a process of its own, by Treadle's interpreter; its
source is read from RecBole's environment. A model that popularity beats is trained again, for longer; one that it still
beats is compared with what RecBole itself reaches in two epochs. Results are kept in a folder, one file a model:
the same command resumes where it was.
"""

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import bridged
from benchmarks.contenders.recbole_timed import ANSWER
from benchmarks.provenance import provenance
from benchmarks.results import write_section

ROOT = Path(__file__).parents[2]
RECBOLE = ROOT / ".venv-recbole" / "bin" / "python"
EPOCHS, MOST = 2, 20
CLOSE = 0.05
"""How far a metric may be from RecBole's own, as a share of it."""
SHORTER: dict[str, Any] = {
    "user_inter_num_interval": "[0,40)",
    "MAX_ITEM_LIST_LENGTH": 10,
    "train_batch_size": 128,
    "learning_rate": 0.003,
}
"""Settings of sequential models, which take minutes an epoch otherwise: users with fewer than 40 interactions."""
SETTINGS: dict[str, dict[str, Any]] = {
    "NCL": {"num_clusters": 100},
    "LightGBM": {"threshold": {"rating": 4}},
    "XGBoost": {"threshold": {"rating": 4}},
    "GRU4RecF": {"load_col": {"inter": ["user_id", "item_id", "rating", "timestamp"], "item": ["item_id", "class"]}},
}
"""Settings of single models, without which RecBole cannot run them on ml-100k either."""
for _name in ("SASRecF", "FDSA", "S3Rec"):
    SETTINGS[_name] = SETTINGS["GRU4RecF"]
SIDES = ("bridge", "recbole")


def schedule_settings(model: str, kind: str) -> dict[str, Any]:
    """Return the settings of a model beside its defaults; both sides have them."""
    return {**(SHORTER if kind == "sequential_recommender" else {}), **SETTINGS.get(model, {})}


def measure(side: str, model: str, kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train a model on one side, and return what it answers, or why it does not run."""
    task: dict[str, Any] = {
        "model": model,
        "dataset": "ml-100k",
        "epochs": EPOCHS,
        "settings": schedule_settings(model, kind),
    }
    if side == "bridge":
        task |= {"most": MOST, "patience": arguments.patience}
        answer = _in_a_child(task, arguments.timeout)
    else:
        answer = _by_recbole(task, kind, arguments)
    return {**answer, "kind": kind, "settings": task["settings"]}


def _in_a_child(task: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Train in a copy of this process, which has imported everything already: a model may crash, or hang."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(task, sender))
    child.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            return {"reason": f"not finished after {seconds:g} seconds"}
        answer: dict[str, Any] = receiver.recv()
        # Killed while it still holds a GPU that others share, it would take their work down with it.
        child.join(timeout=20)
        return answer
    except EOFError:
        return {"reason": "the process ended without an answer"}
    finally:
        child.kill()
        child.join()


def _answer(task: dict[str, Any], sender: Any) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        sender.send(bridged.measure(task))
    except Exception as error:
        text = re.sub(r"/[\w./-]*/", "", " ".join(str(error).split()))
        sender.send({"reason": f"{type(error).__name__}: {text[:200]}"})


def _by_recbole(task: dict[str, Any], kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    if kind == "sequential_recommender" and task["model"] not in ("DIN", "DIEN"):
        # Without this it refuses every model with a softmax over all items.
        task = {**task, "settings": {**task["settings"], "train_neg_sample_args": None}}
    command = [str(arguments.recbole), str(ROOT / "benchmarks" / "contenders" / "recbole_timed.py"), json.dumps(task)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    options: dict[str, Any] = {"capture_output": True, "text": True, "env": environment, "timeout": arguments.timeout}
    # It writes logs and events where it is run.
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(command, cwd=folder, check=False, **options)
        except subprocess.TimeoutExpired:
            return {"reason": f"not finished after {arguments.timeout:g} seconds"}
    lines = [line for line in done.stdout.splitlines() if line.startswith(ANSWER)]
    answer: dict[str, Any] = json.loads(lines[-1].removeprefix(ANSWER)) if lines else {"reason": _reason(done.stderr)}
    return answer


def _reason(errors: str) -> str:
    lines = [line for line in errors.strip().splitlines() if re.match(r"^[\w.]*(Error|Exception|Exit)\b", line)]
    text = lines[-1] if lines else (errors.strip().splitlines() or ["no answer"])[-1]
    return re.sub(r"/[\w./-]*/", "", text)[:200]


def verdict(bridge: dict[str, Any], recbole: dict[str, Any] | None) -> str:
    """Return which of the two conditions a model meets, or what it lacks."""
    if "reason" in bridge:
        return "does not run"
    if max(bridge["scores"]) > bridge["popularity"]:
        return "beats popularity"
    own = None if recbole is None or "reason" in recbole else recbole_score(bridge, recbole)
    if own is None:
        return "not compared" if recbole is None else "RecBole does not run it"
    ratio = max(bridge["first"]) / own
    if abs(ratio - 1) <= CLOSE:
        return "as RecBole"
    return "above RecBole" if ratio > 1 else "below RecBole"


def recbole_score(bridge: dict[str, Any], recbole: dict[str, Any]) -> float:
    """Return the metric that RecBole reached itself."""
    return float(recbole["result"][bridge["metric"].lower()])


def run_all(models: dict[str, str], arguments: argparse.Namespace) -> None:
    """Measure what has not been measured yet; each result is kept as soon as it is there."""
    for model, kind in models.items():
        bridge = kept("bridge", model, kind, arguments)
        if verdict(bridge, None) == "not compared" and not arguments.without_recbole:
            recbole = kept("recbole", model, kind, arguments)
        else:
            recbole = None
        print(f"{model}: {verdict(bridge, recbole)} {bridge.get('reason', '')}", flush=True)


def kept(side: str, model: str, kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return a result that is there already, or measure it and keep it."""
    file = arguments.out / f"{side}-{model}.json"
    if not file.exists():
        found = measure(side, model, kind, arguments)
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    read: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return read


def models_of(package: Path) -> dict[str, str]:
    """Return RecBole's models by name, each with its family."""
    from treadle.recsys.compat.package import list_models

    return {name: module.split(".")[2] for name, module in sorted(list_models(package).items())}


def results_in(folder: Path, side: str) -> dict[str, dict[str, Any]]:
    """Return the results that a folder keeps, by model."""
    files = sorted(folder.glob(f"{side}-*.json"))
    return {file.stem.removeprefix(f"{side}-"): json.loads(file.read_text(encoding="utf-8")) for file in files}


def table(bridge: dict[str, dict[str, Any]], recbole: dict[str, dict[str, Any]]) -> str:
    """Return the models that run, and how they do, as a Markdown table."""
    rows = [
        "| model | family | metric | popularity | after two epochs | best, and its epoch | RecBole, two epochs | |",
        "|---|---|---|--:|--:|--:|--:|---|",
    ]
    for name, found in bridge.items():
        if "reason" in found:
            continue
        other = recbole.get(name)
        own = "" if other is None or "reason" in other else f"{recbole_score(found, other):.4f}"
        best = max(found["scores"])
        epoch = found["scores"].index(best) + 1
        family = found["kind"].removesuffix("_recommender").replace("_", "-")
        figures = f"{found['popularity']:.4f} | {max(found['first']):.4f} | {best:.4f}, {epoch}"
        rows.append(f"| {name} | {family} | {found['metric']} | {figures} | {own} | {verdict(found, other)} |")
    return "\n".join(rows)


def not_running(bridge: dict[str, dict[str, Any]]) -> Iterable[str]:
    """Return the models that do not run, each with the reason."""
    for name, found in bridge.items():
        if "reason" in found:
            yield f"- {name}: {found['reason']}"


def _shown(settings: dict[str, Any]) -> str:
    return ", ".join(f"`{name}: {value}`" for name, value in settings.items())


def section(arguments: argparse.Namespace) -> str:
    """Return the section for RESULTS.md."""
    bridge, recbole = results_in(arguments.out, "bridge"), results_in(arguments.out, "recbole")
    facts = provenance("recsys_bridge", ["torch", "treadle", "numpy", "scipy"], RecBole="1.2.1, its models' files")
    facts = re.sub(r" --(recbole|package|out|note)[ =][^`]*?(?=`| --)", "", facts.replace("--only-write", "--write"))
    verdicts = [verdict(found, recbole.get(name)) for name, found in bridge.items()]
    counts = {one: verdicts.count(one) for one in dict.fromkeys(verdicts)}
    running = sum("reason" not in found for found in bridge.values())
    return "\n".join(
        [
            "## RecBole's models through the bridge",
            "",
            facts,
            "",
            f"Of RecBole's {len(bridge)} models {running} train and are evaluated. By their last column:",
            f"{', '.join(f'{name} {count}' for name, count in counts.items())}.",
            f"As RecBole: after two epochs within {CLOSE:.0%} of it, either way. ml-100k, seed 2020, one thread, each",
            "model with the settings that come with it in RecBole's package; sequential models with",
            f"{_shown(SHORTER)}.",
            "The metric is that of the validation part, the best of the epochs. A model that popularity beats after",
            f"two epochs is trained again, for up to {MOST} and as many as {arguments.patience} seconds allow.",
            "RecBole itself is asked where popularity is better to the end; its random split is the same.",
            *([arguments.note] if arguments.note else []),
            "",
            table(bridge, recbole),
            "",
            "Those that do not run:",
            "",
            *not_running(bridge),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models to measure, with commas; by default all")
    parser.add_argument("--family", default="", help="measure the families whose name holds this text")
    parser.add_argument("--recbole", type=Path, default=RECBOLE, help="the interpreter that has RecBole")
    parser.add_argument("--package", type=Path, help="RecBole's package; by default that of the interpreter")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bridge", help="where results are kept")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds that one model may take")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds that the longer training may take")
    parser.add_argument("--without-recbole", action="store_true", help="do not measure RecBole's own side")
    parser.add_argument("--note", default="", help="a line for the section, such as what else the machine did")
    parser.add_argument("--only-write", action="store_true", help="write the section of what is there")
    parser.add_argument("--write", action="store_true", help="write the section in RESULTS.md")
    arguments = parser.parse_args()
    if arguments.package is None:
        places = sorted(arguments.recbole.parent.parent.glob("lib/python3*/site-packages/recbole"))
        if not places:
            parser.error(f"there is no RecBole beside {arguments.recbole}; run `make recbole` first")
        arguments.package = places[0]
    os.environ["TREADLE_RECBOLE"] = str(arguments.package)
    arguments.out.mkdir(parents=True, exist_ok=True)
    models = {name: kind for name, kind in models_of(arguments.package).items() if arguments.family in kind}
    if arguments.only:
        models = {name: models[name] for name in arguments.only.split(",")}
    if not arguments.only_write:
        run_all(models, arguments)
    if arguments.write or arguments.only_write:
        write_section("recsys-bridge", section(arguments))


if __name__ == "__main__":
    main()
