"""The benchmark of resumes kills what it says, tells exact from inexact, and writes what it measured."""

from pathlib import Path

import pytest
import torch

from benchmarks.docs.readme import columns_of, fill, section_of
from benchmarks.resume import CONTENDERS
from benchmarks.resume import exactness as resume_exactness
from benchmarks.resume.measuring import Ended, FailedError, Outcome, compare, difference, measure
from benchmarks.resume.work import SCENARIOS, NotPossibleError, Samples, Scenario, Weights, make_network

SHORT = Scenario("short", saved_at=2)


def run(scenario: Scenario, folder: Path, resume: bool, *, remembers: bool) -> Weights:
    """Call the network as often as a trainer would, and return a sum of what it saw: kept by a file, or forgotten."""
    network = make_network(scenario).train()
    samples, total, saved = Samples(scenario), torch.zeros(1), folder / "total"
    first = 0
    if resume:
        first = scenario.saved_at
        total += float(saved.read_text()) if remembers else 0.0
    with torch.no_grad():
        for place in range(first, scenario.micro_batches):
            network(samples[place][0])
            total += samples[place][0].sum()
            if place + 1 == scenario.saved_at:
                saved.write_text(repr(total.item()))
    return {"total": total}


def faithful(scenario: Scenario, folder: Path, resume: bool) -> Weights:
    return run(scenario, folder, resume, remembers=True)


def forgetful(scenario: Scenario, folder: Path, resume: bool) -> Weights:
    return run(scenario, folder, resume, remembers=False)


def restarting(scenario: Scenario, folder: Path, resume: bool) -> Weights:
    return run(scenario, folder, False, remembers=True)


def unseeded(scenario: Scenario, folder: Path, resume: bool) -> Weights:
    return {"weight": forgetful(scenario, folder, resume)["total"] + torch.rand(1)}


def refusing(scenario: Scenario, folder: Path, resume: bool) -> Weights:
    raise NotPossibleError("has no such thing")


def breaking(scenario: Scenario, folder: Path, resume: bool) -> Weights:
    if resume:
        raise OSError("cannot read its own file")
    return faithful(scenario, folder, resume)


def test_a_run_that_remembers_everything_is_exact() -> None:
    assert measure(faithful, SHORT) == Outcome("exact")


def test_a_run_that_forgets_differs_by_what_it_forgot() -> None:
    forgotten = sum(float(Samples(SHORT)[place][0].sum()) for place in range(SHORT.saved_at))
    outcome = measure(forgetful, SHORT)
    assert outcome.verdict == "differs"
    assert outcome.difference == pytest.approx(abs(forgotten), rel=1e-4)


def test_a_run_that_begins_again_is_not_called_exact() -> None:
    assert measure(restarting, SHORT) == Outcome("starts over", reason="was trained on 60 micro-batches after the kill")


def test_a_run_that_is_another_each_time_is_not_blamed_on_the_kill() -> None:
    assert measure(unseeded, SHORT).verdict == "not repeatable"


def test_what_cannot_be_done_and_what_fails_are_told_with_their_reasons() -> None:
    assert measure(refusing, SHORT) == Outcome("not possible", reason="has no such thing")
    outcome = measure(breaking, SHORT)
    assert (outcome.verdict, outcome.reason) == ("cannot resume", "short: OSError: cannot read its own file")


def test_a_run_that_outlives_its_death_is_an_error() -> None:
    with pytest.raises(FailedError, match=r"short: was to be killed, ended with 0"):
        measure(lambda scenario, folder, resume: {"weight": torch.zeros(1)}, SHORT)


def test_differences_are_those_of_all_weights_and_nothing_is_overlooked() -> None:
    one = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([0.0])}
    assert difference(one, {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([0.25])}) == 0.25
    assert difference(one, {"a": one["a"]}) == float("inf")
    assert difference(one, {**one, "b": torch.tensor([float("nan")])}) == float("inf")
    resumed = Ended(one, 30)
    assert compare(Ended(one, 60), resumed, SHORT) == Outcome("exact")


def test_every_scenario_is_killed_after_it_was_saved_and_before_its_end() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    for scenario in SCENARIOS:
        assert scenario.saved_at % scenario.accumulation == 0
        assert scenario.saved_at < scenario.deadline < scenario.micro_batches
        assert not scenario.by_epoch or scenario.saved_at % 20 == 0


TABLE = {
    "Treadle": {"short": Outcome("exact")},
    "Lightning": {"short": Outcome("differs", 0.0297)},
    "transformers Trainer": {"short": Outcome("not possible", reason="has no such thing")},
}


def test_the_table_has_a_row_for_each_scenario_and_says_why_cells_are_empty() -> None:
    section = resume_exactness.as_markdown(TABLE, [SHORT], {"Ignite": "ignite not installed"})
    assert "| killed | Treadle | Lightning | transformers Trainer |\n|---|--:|--:|--:|\n" in section
    assert "| short | **exact** | 3e-02 | - |" in section
    assert "- transformers Trainer, short: not possible: has no such thing" in section
    assert "- missing: Ignite (ignite not installed)" in section


def test_readme_counts_the_exact_rows() -> None:
    lines = resume_exactness.readme_table(TABLE, [SHORT]).splitlines()
    assert lines[0] == "| killed | Treadle | transformers | Lightning |"
    assert lines[-1] == "| rows that are exact | 1 | 0 | 0 |"


def test_every_column_of_readme_is_a_contender() -> None:
    assert set(resume_exactness.README_COLUMNS) <= {one.name for one in CONTENDERS}


def test_a_table_is_put_between_its_comments_and_replaced_there(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- begin: a -->\nold\n<!-- end: a -->\nafter\n")
    for text in ("| 1 |", "| 2 |"):
        fill("a", text, page)
        assert page.read_text() == f"before\n<!-- begin: a -->\n\n{text}\n\n<!-- end: a -->\nafter\n"
    with pytest.raises(ValueError, match=r"README\.md needs one line '<!-- begin: b -->' and after it one"):
        fill("b", "| 1 |", page)


def test_a_section_is_read_and_its_columns_are_chosen(tmp_path: Path) -> None:
    results = tmp_path / "RESULTS.md"
    results.write_text("<!-- begin: a -->\nwords\n\n| x | y |\n|---|--:|\n| 1 | 2 |\n<!-- end: a -->\n")
    assert columns_of(section_of("a", results), ["y"]) == "| y |\n|--:|\n| 2 |"
    with pytest.raises(ValueError, match=r"RESULTS\.md has no section 'b'; run the benchmark that writes it"):
        section_of("b", results)
    with pytest.raises(ValueError, match=r"the table has no column 'z'; it has \['x', 'y'\]"):
        columns_of(section_of("a", results), ["z"])
    with pytest.raises(ValueError, match="there is no table in the section"):
        columns_of("words", ["x"])


def test_what_the_command_line_must_not_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, complaint in (
        (["--contender", "Lighting"], "there is no such column"),
        (["--write", "--only", "dropout"], "--write writes whole tables only"),
    ):
        monkeypatch.setattr("sys.argv", ["resume_exactness", *arguments])
        with pytest.raises(SystemExit):
            resume_exactness.parse_options()
        assert complaint in capsys.readouterr().err
