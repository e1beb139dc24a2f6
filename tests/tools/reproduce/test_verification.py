"""A run is made again, from its beginning and from a checkpoint, and planted differences are found and named."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import treadle
from tests.interrupting import make_trainer, samples
from tests.tools.reproduce.conftest import contents, edit, start
from treadle.checkpoint.format.manifest import describe_files, read_manifest, write_manifest
from treadle.checkpoint.format.readers import FolderReader
from treadle.errors import CheckpointError, ConfigError
from treadle.tools.reproduce import verify
from treadle.tools.reproduce.programs import find_program


def test_a_run_of_a_script_is_equal_from_its_beginning_and_from_a_checkpoint_and_is_left_alone(run: Path) -> None:
    before = contents(run)
    found = verify(None, run)
    assert found.equal
    assert [(part.after, part.to, part.verdict) for part in found.parts] == [(0, 3, "equal"), (6, 9, "equal")]
    # Of the first three steps: a loss at step 2 and at step 3, and the losses of the epoch and its evaluation.
    assert [part.comparison.values for part in found.parts] == [4, 4]
    assert [part.comparison.checkpoints for part in found.parts] == [[3], [9]]
    assert all(part.comparison.tensors > 8 for part in found.parts)
    assert (found.surroundings, found.repeatable, found.status) == ([], None, 0)
    assert str(found).splitlines()[0] == "runs/first: equal"
    assert contents(run) == before


def test_as_many_steps_as_are_asked_for_are_made(run: Path) -> None:
    found = verify(None, run, steps=5, checkpoint=3)
    assert [(part.after, part.to) for part in found.parts] == [(0, 5), (3, 8)]
    assert [part.comparison.checkpoints for part in found.parts] == [[3], [6]]
    assert found.equal


def test_no_step_behind_the_last_of_the_run_is_called_equal(run: Path) -> None:
    found = verify(None, run, steps=100, checkpoint=6)
    assert [(part.place, part.verdict) for part in found.parts] == [
        ("from the beginning to step 9", "equal"),
        ("from the checkpoint of step 6 to step 9", "equal"),
    ]


def test_a_run_that_was_moved_is_made_again(run: Path) -> None:
    run.rename("elsewhere")
    assert verify(None, "elsewhere", steps=3).equal
    assert not run.exists()


def test_a_changed_seed_in_the_command_line_is_another_beginning_but_no_other_way_on(run: Path) -> None:
    edit(run / "manifest.json", lambda manifest: {**manifest, "command": [manifest["command"][0], "4"]})
    found = verify(None, run)
    assert [part.verdict for part in found.parts] == ["different", "equal"]
    assert found.status == 1
    first = found.parts[0].comparison.differences
    assert first[0].startswith("metrics, step 2: train_loss was ")
    assert any(
        line.startswith("checkpoint, step 3: model.0.weight differs in 16 of 16 values, by up to") for line in first
    )
    # Nothing else is recorded of the seed of the weights, so the program is tried twice.
    assert found.repeatable is True
    assert "two repetitions agree with each other" in str(found)


def test_a_changed_seed_of_the_trainer_is_named(run: Path) -> None:
    program = Path("train.py")
    rewrite(program, "seed=0", "seed=1")
    found = verify(None, run)
    assert found.parts[0].verdict == "different"
    assert found.surroundings[:2] == ["seed: 0 then, 1 now", "settings.seed: 0 then, 1 now"]
    assert "code: train.py has changed" in found.surroundings


def test_a_changed_data_file_is_named(run: Path) -> None:
    rows = Path("rows.csv").read_text().splitlines()
    Path("rows.csv").write_text("\n".join(["0.5,0.5,0.5", *rows[1:]]) + "\n")
    found = verify(None, run)
    assert [part.verdict for part in found.parts] == ["different", "different"]
    assert found.surroundings == ["files: rows.csv has changed"]
    assert found.repeatable is None
    assert str(found).splitlines()[-2:] == ["  what is not as it was:", "    files: rows.csv has changed"]


def rewrite(path: Path, old: str, new: str) -> None:
    """Change a program."""
    path.write_text(path.read_text().replace(old, new))


def test_a_changed_line_of_the_model_is_named(run: Path) -> None:
    layers = Path("layers_of_mine.py")
    rewrite(layers, "Tanh", "ReLU")
    found = verify(None, run)
    assert [part.verdict for part in found.parts] == ["different", "different"]
    assert found.surroundings == ["code: layers_of_mine.py has changed"]


def test_a_model_of_another_shape_is_refused_by_the_checkpoint_and_that_is_told(run: Path) -> None:
    layers = Path("layers_of_mine.py")
    rewrite(layers, "8", "9")
    found = verify(None, run)
    assert [part.verdict for part in found.parts] == ["different", "different"]
    assert found.parts[1].reason.startswith("the run in runs/first is another one: model.0.weight: (8, 2)")
    assert found.parts[1].reason.endswith("now")
    assert "identity.model.0.weight: (8, 2) torch.float32 then, (9, 2) torch.float32 now" in found.surroundings


def test_a_flipped_bit_in_a_checkpoint_is_damage(run: Path) -> None:
    path = run / "checkpoints" / "step_00000006" / "rank_0.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    found = verify(None, run)
    assert (found.verdict, found.status) == ("different", 1)
    assert found.damaged == [f"{path.parent}: rank_0.safetensors is damaged: its checksum differs"]
    # The parts do without it.
    assert [(part.after, part.to, part.verdict) for part in found.parts] == [(0, 3, "equal"), (3, 9, "equal")]


def test_a_flipped_bit_under_a_checksum_made_to_fit_is_found_by_making_the_steps_again(run: Path) -> None:
    folder = run / "checkpoints" / "step_00000009"
    tensors = load_file(folder / "rank_0.safetensors")
    bits = tensors["tracked.model.3.bias"].view(torch.int32)
    bits ^= 1
    save_file(tensors, folder / "rank_0.safetensors")
    manifest = {**read_manifest(FolderReader(folder)), "files": describe_files(folder, 0)}
    write_manifest(folder, {name: value for name, value in manifest.items() if name != "format"})
    found = verify(None, run)
    assert (found.damaged, [part.verdict for part in found.parts]) == ([], ["equal", "different"])
    (told,) = found.parts[1].comparison.differences
    assert told.startswith("checkpoint, step 9: model.3.bias differs in 1 of 1 values, by up to ")


def test_an_edited_line_of_metrics_is_found(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    (run / "metrics.jsonl").write_text("\n".join([json.dumps({**first, "train_loss": 0.25}), *lines[1:]]) + "\n")
    found = verify(None, run)
    assert found.parts[0].comparison.differences == [
        f"metrics, step 2: train_loss was 0.25, is {first['train_loss']!r}"
    ]


def test_other_versions_threads_and_determinism_are_named_even_where_nothing_else_differs(run: Path) -> None:
    def change(manifest: dict[str, Any]) -> dict[str, Any]:
        manifest["environment"] |= {"threads": 7, "device": "another"}
        manifest["determinism"]["deterministic"] = True
        manifest["packages"]["numpy"] = "0.1"
        return manifest

    edit(run / "manifest.json", change)
    found = verify(None, run, steps=3)
    assert found.equal
    told = "\n".join(found.surroundings)
    assert f"environment.threads: 7 then, {torch.get_num_threads()} now" in told
    assert "environment.device: another then, " in told
    assert "determinism.deterministic: True then, False now" in told
    assert "packages.numpy: 0.1 then, " in told
    assert "though this is not as it was:" in str(found)


SUMS = """
import torch
from torch import nn
from treadle import Trainer


class Sums(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.many = nn.Parameter(torch.randn(3_000_001))

    def forward(self, inputs):
        return self.many.sum() * inputs


if __name__ == "__main__":
    model = Sums()
    data = [(torch.ones(1), torch.zeros(1))] * 2
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    Trainer(model, nn.MSELoss(), optimizer, callbacks=(), seed=0, run_dir="runs/sums", device="cpu").train(
        data, num_epochs=2, per_device_batch_size=2, log_every=1, train_dataloader_kwargs={"num_workers": 0}
    )
"""


def test_another_number_of_threads_gives_other_sums_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sums.py").write_text(SUMS)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        start(tmp_path / "sums.py")
        torch.set_num_threads(4)
        found = verify(None, "runs/sums", steps=2)
    finally:
        torch.set_num_threads(before)
    assert found.verdict == "different"
    assert found.surroundings == ["environment.threads: 1 then, 4 now"]


def test_a_program_that_is_never_the_same_is_told_so(run: Path) -> None:
    layers = Path("layers_of_mine.py")
    layers.write_text("import time, torch\n" + layers.read_text() + "\n")
    text = layers.read_text().replace("    return", "    torch.manual_seed(time.time_ns() % 2**31)\n    return")
    layers.write_text(text)
    # As if it had been like that when the run was made.
    edit(run / "manifest.json", lambda manifest: {**manifest, "code": {}})
    found = verify(None, run)
    assert (found.verdict, found.repeatable) == ("different", False)
    assert "two repetitions differ from each other, too" in str(found)


@pytest.mark.parametrize(
    "called",
    ["/home/bin/treadle", "/packages/treadle/__main__.py", "/packages/treadle/cli/__main__.py"],
    ids=["script", "package", "module"],
)
def test_a_run_of_the_command_is_known_however_python_was_told_to_run_it(called: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"command": [called, "recsys", "--model", "BPR"]}))
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    assert find_program(tmp_path).name == "treadle recsys --model BPR"


# What cannot be tried ---------------------------------------------------------------------------------------


def test_a_run_of_a_notebook_needs_the_function_that_made_it(run: Path) -> None:
    def make() -> None:
        make_trainer(Path("runs/notebook")).train(samples(), 2)

    make()
    with pytest.raises(ConfigError, match=r"call treadle.verify\(function, run_dir\)"):
        verify(None, "runs/notebook")
    before = contents(Path("runs/notebook"))
    assert treadle.verify(make, "runs/notebook").equal
    assert contents(Path("runs/notebook")) == before


def test_a_script_that_is_gone_is_told(run: Path) -> None:
    Path("train.py").unlink()
    with pytest.raises(ConfigError, match=r"made by .*train.py, which is not there any more"):
        verify(None, run)


def test_a_program_that_fails_could_not_be_tried_and_what_changed_is_told(run: Path) -> None:
    Path("layers_of_mine.py").write_text("raise ValueError('no layers today')\n")
    found = verify(None, run)
    assert (found.verdict, found.status) == ("could not be tried", 2)
    assert found.parts[0].reason.endswith("train.py failed: ValueError: no layers today")
    assert found.surroundings == ["code: layers_of_mine.py has changed"]


def test_a_program_that_trains_elsewhere_could_not_be_tried(run: Path) -> None:
    program = Path("train.py")
    rewrite(program, "runs/first", "runs/other")
    found = verify(None, run)
    assert found.status == 2
    assert "the program ended without training in " in found.parts[0].reason
    assert not Path("runs/other").exists()


def test_a_program_that_writes_into_the_run_by_a_path_of_its_own_is_kept_from_it(run: Path) -> None:
    before = contents(run)
    program = Path("train.py")
    line = "    Path('runs/first/notes.txt').write_text('mine')\n"
    rewrite(program, "    model = make_model()\n", line + "    model = make_model()\n")
    found = verify(None, run)
    assert found.status == 2
    assert "runs/first/notes.txt, in the folder of the run that is being verified" in found.parts[0].reason
    assert contents(run) == before


def test_a_run_whose_second_half_could_not_be_tried_is_not_called_equal(run: Path) -> None:
    rewrite(Path("layers_of_mine.py"), "def make_model", "COUNT = 0\n\n\ndef make_model")
    rewrite(
        Path("train.py"),
        "    data = Rows",
        "    if Path(trainer.run_dir, 'checkpoints', 'last').exists():\n"
        "        raise ValueError('not again')\n"
        "    data = Rows",
    )
    found = verify(None, run)
    assert [part.verdict for part in found.parts] == ["equal", "could not be tried"]
    assert found.parts[1].reason.endswith("train.py failed: ValueError: not again")
    assert (found.verdict, found.equal, found.status) == ("tried in part", False, 2)
    assert str(found).splitlines()[0] == "runs/first: tried in part"


def test_a_run_without_a_checkpoint_to_go_on_from_is_equal_only_if_all_of_it_was_made_again(run: Path) -> None:
    for step in (3, 6):
        shutil.rmtree(run / "checkpoints" / f"step_{step:08d}")
    found = verify(None, run, steps=5)
    assert [(part.place, part.verdict) for part in found.parts] == [
        ("from the beginning to step 5", "equal"),
        ("from a checkpoint", "could not be tried"),
    ]
    assert found.parts[1].reason == (
        "the run kept none with steps behind it; pass --steps 9 to make all of it again from the beginning"
    )
    assert (found.verdict, found.status) == ("tried in part", 2)
    assert verify(None, run, steps=9).equal


def test_a_run_that_recorded_nothing_in_so_few_steps_is_told_so(run: Path) -> None:
    found = verify(None, run, steps=1)
    assert found.parts[0].verdict == "could not be tried"
    assert found.parts[0].reason == "the run recorded nothing up to step 1; make more steps"


def test_what_is_no_run_and_a_checkpoint_that_is_not_there_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        verify(None, tmp_path)
    with pytest.raises(CheckpointError, match="has no whole checkpoint of step 4; it has 3, 6, 9"):
        verify(None, run, checkpoint=4)
    with pytest.raises(ConfigError, match="steps=0 must be at least 1"):
        verify(None, run, steps=0)


def test_a_run_of_several_processes_is_not_made_again_by_one(run: Path) -> None:
    edit(run / "manifest.json", lambda manifest: {**manifest, "processes": 2})
    with pytest.raises(ConfigError, match="was made by 2 processes, whose sums round otherwise"):
        verify(None, run)


def test_a_run_without_steps_has_nothing_to_compare(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ConfigError, match="recorded no step"):
        verify(lambda: nn.Linear(1, 1), tmp_path)
