"""A run that is kept in a bucket, or another storage, is a run like any other, and says what it cannot be."""

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from tests.interrupting import CutAt, CutError, Updates, assert_same_run, network, samples
from tests.sqlite_storage import SqliteStorage
from treadle import Trainer, TrainerCallback
from treadle.checkpoint import CheckpointStore, FsspecStorage, Policy, Storage
from treadle.cli import app
from treadle.errors import CheckpointError, ConfigError, StorageError
from treadle.files.process_identity import machine
from treadle.files.storage import Within
from treadle.runs import lease as run_lease
from treadle.runs.lease import Lease
from treadle.runs.lock import run_lock
from treadle.runs.mirror import fetch_run
from treadle.runs.place import find_mirror
from treadle.runs.reader import read_run
from treadle.tools.reproduce import verify

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(params=["memory", "file", "own"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """The places of a run: an object store, a file system, and one of somebody's own."""
    if request.param == "own":
        yield SqliteStorage(tmp_path / "kept.sqlite")
    else:
        yield FsspecStorage(f"{request.param}://{tmp_path}/kept")
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Storage]:
    """An object store."""
    yield FsspecStorage(f"memory://{tmp_path.name}/run")
    fsspec.filesystem("memory").store.clear()


def make_trainer(place: Any, *callbacks: Any, **arguments: Any) -> Trainer:
    """A trainer that is kept in a place; a storage of fsspec is given by its URL."""
    model = network()
    return Trainer(
        model,
        nn.MSELoss(),
        torch.optim.AdamW(model.parameters(), lr=0.05),
        callbacks=callbacks,
        run_dir=place.url if isinstance(place, FsspecStorage) else place,
        seed=3,
        **arguments,
    )


def store_of(storage: Storage) -> CheckpointStore:
    return CheckpointStore(Within(storage, "checkpoints"), Policy())


def steps_reported(storage: Storage) -> list[int]:
    return [json.loads(line)["step"] for line in storage.read("metrics.jsonl").splitlines()]


def test_a_run_that_was_cut_goes_on_in_the_middle_of_an_epoch_and_ends_in_the_same_bits(storage: Storage) -> None:
    with pytest.raises(CutError):
        make_trainer(storage, CutAt(5)).train(samples(), 3, save_every=2, log_every=1)
    assert store_of(storage).newest_good() == 4
    updates = Updates()
    resumed = make_trainer(storage, updates)
    resumed.train(samples(), 3, save_every=2, log_every=1, resume="auto")
    assert (updates.began, updates.made) == (4, 5)
    whole = make_trainer(None)
    whole.train(samples(), 3, log_every=1)
    assert_same_run(resumed, whole)
    assert steps_reported(storage) == list(range(1, 10))
    assert f"resuming from step 4 of {storage.url}" in storage.read("log.txt").decode()
    assert json.loads(storage.read("status.json"))["state"] == "finished"
    assert f"run_dir: {json.dumps(storage.url)}" in storage.read("config.yaml").decode()
    assert len(json.loads(storage.read("manifest.json"))["starts"]) == 2
    assert "lock.json" not in storage.files()


def test_a_run_that_is_there_is_not_begun_again_unasked(bucket: Storage) -> None:
    make_trainer(bucket).train(samples(), 1)
    before = bucket.files()
    with pytest.raises(CheckpointError, match=r"memory://.*/run already holds a run, at step 3; pass resume='auto'"):
        make_trainer(bucket).train(samples(), 1)
    assert bucket.files().keys() == before.keys()


def test_the_newest_whole_checkpoint_is_gone_on_from_and_the_damaged_one_is_kept(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    make_trainer(storage).train(samples(), 2, save_every=1)
    (name,) = (name for name in storage.files("checkpoints/step_00000006") if name.endswith(".safetensors"))
    storage.write(name, storage.read(name)[:-1])
    updates = Updates()
    with caplog.at_level(logging.WARNING, logger="treadle"):
        make_trainer(storage, updates).train(samples(), 3, save_every=1, resume="auto")
    assert (updates.began, updates.made) == (5, 4)
    assert "the damaged checkpoint of step 6 is kept as" in caplog.text
    assert name in storage.files()
    assert store_of(storage).newest_good() == 9


def test_the_best_and_the_last_are_kept(storage: Storage) -> None:
    policy = Policy(keep_last=1, best="eval_loss_epoch", greater_is_better=True)
    make_trainer(storage, checkpoints=policy).train(samples(), 3, samples())
    store = store_of(storage)
    assert store.pointer("best") == 3
    assert (store.steps(), store.pointer("last")) == ([3, 9], 9)


def test_what_callbacks_write_into_the_folder_is_kept_with_the_run(bucket: Storage) -> None:
    class Notes(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            (trainer.run_dir / "notes").mkdir(exist_ok=True)
            (trainer.run_dir / "notes" / f"{trainer.progress.step}.bin").write_bytes(b"\xff")
            (trainer.run_dir / "notes" / f"{trainer.progress.step - 1}.bin").unlink(missing_ok=True)

    make_trainer(bucket, Notes()).train(samples(), 1, save_every=1)
    assert bucket.files("notes") == {"notes/3.bin": 1}
    trainer = make_trainer(bucket)
    trainer.train(samples(), 2, resume="auto")
    assert (trainer.run_dir / "notes" / "3.bin").read_bytes() == b"\xff"


def test_a_failing_store_ends_the_run_by_a_message_or_is_reported(
    bucket: Storage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    upload = FsspecStorage.upload

    def fail(self: FsspecStorage, name: str, file: Path) -> None:
        if "step_00000002" in name:
            raise StorageError(f"{self.address(name)} cannot be written now: no quota")
        upload(self, name, file)

    monkeypatch.setattr(FsspecStorage, "upload", fail)
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint of step 2 into memory://.*no quota"):
        make_trainer(bucket).train(samples(), 1, save_every=1)
    assert json.loads(bucket.read("status.json"))["state"] == "failed"
    make_trainer(bucket, checkpoints=Policy(on_error="warn")).train(samples(), 1, save_every=1, resume="auto")
    assert "continuing without a checkpoint: cannot write the checkpoint of step 2" in capsys.readouterr().out
    assert 2 not in store_of(bucket).steps()


def test_a_storage_of_one_process_is_refused_to_several(bucket: Storage) -> None:
    two: Any = SimpleNamespace(distributed=True, size=2, is_main=True)
    alone = run_lock(make_trainer(bucket).run_dir, two)
    with pytest.raises(ConfigError, match="is seen by one process alone, and this run has 2; keep it in a f"), alone:
        pass


# One run at a time ----------------------------------------------------------------------------------------

ELSEWHERE = {"owner": "x", "pid": 12, "host": "another", "machine": "another:1", "started": "1", "signs": 1}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lease, "RENEWED_EVERY", 0.05)
    monkeypatch.setattr(run_lease, "LAPSES_AFTER", 0.5)
    monkeypatch.setattr(run_lease, "LOOKS_EVERY", 0.02)


@pytest.mark.usefixtures("quick")
def test_a_run_on_another_machine_that_shows_life_is_left_alone(bucket: Storage) -> None:
    other = Lease(bucket)
    other._content = lambda: json.dumps({**ELSEWHERE, "owner": other._owner, "time": time.time()}).encode()  # type: ignore[method-assign]
    other.take()
    with pytest.raises(CheckpointError, match=r"/run is in use: process 12 on another trains in it; wait for its end"):
        make_trainer(bucket).train(samples(), 1)
    other.release()
    make_trainer(bucket).train(samples(), 1)


@pytest.mark.usefixtures("quick")
def test_a_run_on_another_machine_that_shows_none_is_gone_on_with_and_that_is_told(
    bucket: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.write("lock.json", json.dumps(ELSEWHERE).encode())
    with caplog.at_level(logging.WARNING, logger="treadle"):
        make_trainer(bucket).train(samples(), 1)
    assert "process 12 on another gave none, so this process takes over" in caplog.text
    assert "lock.json" not in bucket.files()


def test_a_process_of_this_machine_that_is_gone_is_not_waited_for(bucket: Storage) -> None:
    gone = {**ELSEWHERE, "machine": machine(), "pid": 1, "started": "another one of that number"}
    bucket.write("lock.json", json.dumps(gone).encode())
    make_trainer(bucket).train(samples(), 1)


def test_a_run_whose_place_was_taken_writes_no_further_checkpoint(bucket: Storage) -> None:
    class Thief(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 2:
                trainer.this_run.checkpointer.wait()
                bucket.write("lock.json", json.dumps(ELSEWHERE).encode())

    with pytest.raises(CheckpointError, match=r"no longer holds memory://.*process 12 on another did.*Start it again"):
        make_trainer(bucket, Thief()).train(samples(), 2, save_every=1)
    assert store_of(bucket).steps()[-1] == 1
    assert json.loads(bucket.read("lock.json")) == ELSEWHERE


@pytest.mark.usefixtures("quick")
def test_signs_of_life_are_given_while_a_run_lasts(bucket: Storage) -> None:
    lease = Lease(bucket)
    lease.take()
    first = json.loads(bucket.read("lock.json"))["signs"]
    deadline = time.monotonic() + 20
    while json.loads(bucket.read("lock.json"))["signs"] < first + 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lease.release()
    assert bucket.files() == {}


# What needs a folder --------------------------------------------------------------------------------------


def test_a_run_is_fetched_and_is_then_one_like_any_other(storage: Storage, tmp_path: Path) -> None:
    make_trainer(storage).train(samples(), 1, save_every=1)
    count, size = fetch_run(storage, tmp_path / "copy")
    assert (count, size) == (len(storage.files()), sum(storage.files().values()))
    run = read_run(tmp_path / "copy")
    assert (run.state, [one.step for one in run.checkpoints], run.problems) == ("finished", [1, 2, 3], ())
    assert run.checkpoints[-1].size == sum(storage.files("checkpoints/step_00000003").values())
    updates = Updates()
    resumed = make_trainer(tmp_path / "copy", updates)
    resumed.train(samples(), 2, resume="auto")
    assert (updates.began, updates.made) == (3, 3)
    with pytest.raises(CheckpointError, match="copy is there already; give the name of a new folder"):
        fetch_run(storage, tmp_path / "copy")


def test_commands_read_a_bucket_or_say_how_to_copy_it(
    bucket: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_trainer(bucket).train(samples(), 1)
    call = CliRunner().invoke
    exported = call(app, ["export", bucket.url, "-o", "weights.pt"])
    assert exported.exit_code == 0, exported.output
    assert torch.load("weights.pt", weights_only=True).keys() == network().state_dict().keys()
    for command in ("runs", "report", "verify", "eval", "resume"):
        refused = call(app, [command, bucket.url])
        assert refused.exit_code in (1, 2), command
        told = " ".join(refused.output.split())
        assert f"{bucket.url} is no folder of this machine, and" in told, command
        assert f"copied by: treadle fetch {bucket.url} FOLDER" in told
    fetched = call(app, ["fetch", bucket.url, "copy"])
    assert fetched.exit_code == 0, fetched.output
    assert "files, " in fetched.output
    listed = call(app, ["runs", "."])
    assert "copy" in listed.output
    nothing = call(app, ["fetch", "memory://nothing/here", "other"])
    assert nothing.exit_code == 1
    assert "memory://nothing/here holds no run" in nothing.output


def test_what_is_written_after_the_end_is_not_lost_silently(bucket: Storage, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(bucket)
    trainer.train(samples(), 1)
    (trainer.run_dir / "late.txt").write_text("late")
    mirror = find_mirror(trainer.run_dir)
    assert mirror is not None
    with caplog.at_level(logging.WARNING, logger="treadle"):
        mirror._leave()
    assert "written after the end of the run, so not kept with it" in caplog.text
    assert "late.txt" in caplog.text
    assert (trainer.run_dir / "late.txt").exists()
    # A run of this process that goes on there takes it along.
    make_trainer(bucket).train(samples(), 2, resume="auto")
    assert bucket.read("late.txt") == b"late"
    mirror._leave()
    assert not trainer.run_dir.exists()


def test_doors_that_need_a_folder_refuse_a_url_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.engine.test_resume import config
    from treadle import nas
    from treadle.engine import Checkpointer, DefaultTrainer
    from treadle.nas import weights_over_time

    monkeypatch.chdir(tmp_path)
    cfg = config(tmp_path / "run")
    cfg.train.output_dir = "s3://key:secret@bucket/run"
    refusals: list[Any] = [
        lambda: DefaultTrainer(cfg),
        lambda: Checkpointer(nn.Linear(1, 1), cfg.train.output_dir),
        lambda: nas.Search(nas.ValueChoice([1, 2], label="one"), lambda choice: choice, run_dir=cfg.train.output_dir),
        lambda: weights_over_time(cfg.train.output_dir),
        lambda: verify(None, cfg.train.output_dir),
        lambda: read_run(Path(cfg.train.output_dir)),
    ]
    for refused in refusals:
        with pytest.raises(ConfigError, match=r"s3://key:\*\*\*@bucket/run is no folder of this machine, and .*: tre"):
            refused()
    assert list(tmp_path.iterdir()) == []
