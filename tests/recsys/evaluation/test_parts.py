"""Results of parts of the users add up to those of all of them: in one process, and in several."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.forking.starting import run
from tests.recsys.evaluation.cases import Situation, situations
from tests.recsys.evaluation.several_processes import evaluate
from treadle.recsys.evaluation import FullRanking, Groups

ROOT = Path(__file__).parents[3]


@given(situation=situations(), data=st.data())
def test_fact_9_parts_of_the_users_merge_into_the_whole(situation: Situation, data: st.DataObject) -> None:
    positives, seen = situation.table(situation.positives), situation.table(situation.seen)
    there = positives.counts.nonzero().flatten().tolist()
    part = data.draw(st.lists(st.sampled_from(there), min_size=1, unique=True))
    users = Groups("users", ("even", "odd"), torch.arange(len(situation.positives)) % 2)
    items = Groups("items", ("even", "odd"), torch.arange(situation.num_items) % 2)

    def ranking(chosen: list[int]) -> FullRanking:
        return FullRanking(
            situation.plan([1, 2] if situation.num_items - situation.first_item > 1 else [1]),
            positives,
            seen=seen,
            users=torch.tensor(chosen),
            user_groups=[users],
            item_groups=[items],
            keep_per_user=True,
        )

    whole = ranking(there).evaluate(situation.scorer)
    state = ranking(part).accumulate(situation.scorer)
    rest = [user for user in there if user not in part]
    if rest:
        state.merge(ranking(rest).accumulate(situation.scorer))
    found = state.result()
    assert found.metrics == pytest.approx(whole.metrics, rel=1e-12, nan_ok=True)
    assert found.group_users == whole.group_users
    for name, groups in whole.groups.items():
        for label, values in groups.items():
            assert found.groups[name][label] == pytest.approx(values, rel=1e-12, nan_ok=True)
    assert found.per_user is not None
    assert whole.per_user is not None
    assert torch.equal(found.per_user.users, whole.per_user.users)
    assert torch.equal(found.per_user["ndcg@1"], whole.per_user["ndcg@1"])


def compare(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for name, value in expected.items():
            compare(found[name], value)
    else:
        assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3])
def test_fact_9_several_processes_find_what_one_finds(number: int, tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}"]
    program = ["-m", "tests.recsys.evaluation.several_processes", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"OMP_NUM_THREADS": "1"}
    done = run(*launcher, *program, cwd=ROOT, env=environment, timeout=300, launches=True)
    assert done.returncode == 0, done.stdout + done.stderr
    alone = evaluate(None)
    assert alone["users"][0] > 30
    for rank in range(number):
        compare(json.loads((tmp_path / f"rank_{rank}.json").read_text()), alone)
