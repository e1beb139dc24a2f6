"""What the compiler made is kept with a run, and is loaded by nobody but the user who made it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.codecache import PyCodeCache

from tests.execution.quick_compiler import quick_compiler
from tests.execution.test_compiled_steps import train
from tests.interrupting import starts_of
from treadle.execution.artifacts import CODE, FACTS, ROOM, load_artifacts, save_artifacts

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning"),  # torch's own, where it loads its compiler
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),  # torch's own, where it looks at its inputs
]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bytes]:
    """Stands for the compiler, which made something and is given something; the user has a key of his own."""
    found: list[bytes] = []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"code", None))
    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", found.append)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    made.mkdir()
    return made


def edit_facts(folder: Path, **changes: Any) -> None:
    path = folder / ROOM / FACTS
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_what_was_compiled_is_loaded_by_the_next_start(loaded: list[bytes], folder: Path) -> None:
    assert save_artifacts(folder)
    assert load_artifacts(folder) == ""
    assert loaded == [b"code"]


def test_a_folder_without_compiled_code_is_nothing_to_speak_of(loaded: list[bytes], folder: Path) -> None:
    assert load_artifacts(folder) == ""
    assert loaded == []


def test_code_of_another_user_is_not_loaded(
    loaded: list[bytes], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert save_artifacts(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states of another"))
    # Another user has a key, too.
    assert save_artifacts(tmp_path)
    assert load_artifacts(folder) == (
        f"what was compiled for {folder} is code without your mark, so it is not loaded but compiled anew"
    )
    assert loaded == []


def test_code_that_was_exchanged_is_not_loaded(loaded: list[bytes], folder: Path) -> None:
    assert save_artifacts(folder)
    (folder / ROOM / CODE).write_bytes(b"evil")
    assert load_artifacts(folder) == f"what was compiled for {folder} is damaged, so it is compiled anew"
    edit_facts(folder, checksum="4b71e1a5a5cf8a4b51e4c2b6c6b0a7a1")
    assert "without your mark" in load_artifacts(folder)
    assert loaded == []


def test_facts_that_cannot_be_read_are_said(loaded: list[bytes], folder: Path) -> None:
    assert save_artifacts(folder)
    (folder / ROOM / FACTS).write_text("{")
    assert load_artifacts(folder).startswith(f"what was compiled for {folder} cannot be read (")
    assert loaded == []


def test_code_for_another_torch_is_left_alone(
    loaded: list[bytes], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(torch, "__version__", "2.10.0")
        assert save_artifacts(folder)
    assert load_artifacts(folder) == ""
    assert loaded == []


def test_a_compiled_run_keeps_its_code_and_its_resume_loads_it(
    loaded: list[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"run_dir": tmp_path / "run"}
    with quick_compiler():
        train("compile", trainer=options, max_steps=2)
        assert (tmp_path / "run" / ROOM / CODE).read_bytes() == b"code"
        assert loaded == []
        train("compile", trainer=options, resume="auto")
        assert loaded == [b"code"]
        edit_facts(tmp_path / "run", mark="0")
        train("compile", trainer=options, resume="auto", num_epochs=3)
    assert loaded == [b"code"]
    assert "is code without your mark, so it is not loaded but compiled anew" in capsys.readouterr().out


def test_a_run_without_compiled_steps_keeps_none(loaded: list[bytes], tmp_path: Path) -> None:
    train("eager", trainer={"run_dir": tmp_path / "run"})
    assert not (tmp_path / "run" / ROOM).exists()


@pytest.mark.slow
def test_a_resume_on_another_machine_finds_every_graph_that_was_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the real compiler, whose own caches are empty each time: the first start makes code, the second finds it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    found: list[dict[str, int]] = []
    for machine, epochs in (("first", 1), ("second", 2)):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / machine))
        PyCodeCache.cache_clear(), torch._dynamo.reset(), counters.clear()
        trainer = train("compile", trainer={"run_dir": tmp_path / "run"}, num_epochs=epochs, resume="auto")
        found.append({name: counters["inductor"][f"fxgraph_cache_{name}"] for name in ("miss", "hit", "bypass")})
    assert starts_of(tmp_path / "run") == [0, trainer.progress.step // 2]
    assert found[0]["miss"] > 0
    assert found[0]["bypass"] == 0
    assert found[1] == {"miss": 0, "hit": found[0]["miss"], "bypass": 0}
