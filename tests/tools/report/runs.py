"""Folders of runs, written by hand, so that every number on a page is known."""

import json
from pathlib import Path
from typing import Any


def make_run(folder: Path, rows: list[dict[str, Any]], *, starts: int = 1, config: str = "lr: 0.1\n") -> Path:
    """Write the folder of a run with these rows of metrics and return it."""
    saved = folder / "checkpoints" / "step_00000010"
    saved.mkdir(parents=True)
    (saved / "manifest.json").write_text(json.dumps({"step": 10, "finished": True}))
    (saved / "state.safetensors").write_bytes(bytes(2000))
    (folder / "checkpoints" / "last").write_text(saved.name)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "config.yaml").write_text(config)
    times = [{"time": f"2026-01-01T00:0{minute}:00+0000", "step": 10 * minute} for minute in range(starts)]
    manifest = {"starts": times, "packages": {"torch": "2.13.0"}, "command": ["train.py", "--fast"], "seed": 7}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "log.txt").write_text("epoch 1\nepoch 2\n")
    return folder


def rows_of(losses: list[Any], **more: Any) -> list[dict[str, Any]]:
    """Return rows of metrics a second apart."""
    begin = 1767225600.0  # the first second of 2026
    return [
        {"step": step, "epoch": 0, "wall_time": begin + step, "train_loss": loss, **more}
        for step, loss in enumerate(losses, 1)
    ]
