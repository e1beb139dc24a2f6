"""`treadle verify`: a run made again and compared, in a shell."""

import json
from pathlib import Path

from tests.cli.conftest import Treadle
from tests.cli.project import forget_project
from tests.tools.reproduce.conftest import contents, never_compiled

CONFIG = "configs/small.py"
SHORT = ("train.train_iter=8", "train.evaluation.enabled=false")
__all__ = ["never_compiled"]
"""A fixture, which is in force in this module by being here."""


def test_a_run_of_a_config_is_made_again_and_its_folder_left_alone(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG, *SHORT)
    before = contents(Path("runs/small"))
    lines = treadle("verify", "runs/small").stdout.splitlines()
    assert lines[0] == "runs/small: equal"
    assert lines[1].startswith("  from the beginning to step 4: equal (")
    assert lines[2].startswith("  from the checkpoint of step 4 to step 8: equal (")
    assert contents(Path("runs/small")) == before


def test_a_changed_seed_or_line_of_the_model_is_status_1_and_named(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG, *SHORT)
    config = Path("runs/small/config.yaml")
    config.write_text(config.read_text().replace("seed: 1234", "seed: 1235"))
    found = json.loads(treadle("verify", "runs/small", "--json", "--steps", "4", status=1).stdout)
    assert (found["verdict"], found["parts"][0]["verdict"]) == ("different", "different")
    assert found["surroundings"] == ["seed: 1234 then, 1235 now"]
    config.write_text(config.read_text().replace("seed: 1235", "seed: 1234"))
    parts = Path("mine/parts.py")
    parts.write_text(parts.read_text().replace("nn.Tanh()", "nn.ReLU()"))
    forget_project()
    told = treadle("verify", "runs/small", status=1).stdout
    assert told.splitlines()[-2:] == ["  what is not as it was:", "    code: mine/parts.py has changed"]


def test_what_could_not_be_tried_is_status_2(project: Path, treadle: Treadle) -> None:
    assert "none is not there" in treadle("verify", "none", status=2).stderr
    treadle("train", CONFIG, *SHORT)
    text = Path("mine/parts.py").read_text()
    Path("mine/parts.py").write_text(text.replace("class Network(nn.Module):", "class Renamed(nn.Module):"))
    forget_project()
    told = treadle("verify", "runs/small", status=2).stdout
    assert told.startswith("runs/small: could not be tried\n  from the beginning to step 4: could not be tried: ")
    assert "code: mine/parts.py has changed" in told
