"""The script of the pictures finds its browser, says so where there is none, and reads a terminal."""

import sys
from pathlib import Path

import pytest

from benchmarks.docs import browser, screenshots


def test_the_environment_variable_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "chromium"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(browser.VARIABLE, raising=False)
    assert browser.find_browser() == str(program)
    monkeypatch.setenv(browser.VARIABLE, str(tmp_path / "elsewhere"))
    assert browser.find_browser() is None


def test_where_there_is_no_browser_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(browser.VARIABLE, raising=False)
    monkeypatch.setattr(sys, "argv", ["screenshots"])
    with pytest.raises(SystemExit, match=r"^no pictures: needs Chromium, .* or its path into TREADLE_CHROMIUM$"):
        screenshots.main()
    with pytest.raises(FileNotFoundError, match="needs Chromium"):
        browser.opened(tmp_path / "page.html")


def test_the_screen_is_what_a_terminal_shows_after_lines_were_drawn_again() -> None:
    drawn = "start\n\x1b[?25l\r\x1b[2K\x1b[31m10%\x1b[0m\r\x1b[2Kbar 100%\n\x1b[?25hlow\n\x1b[1A\x1b[2Khigh\n"
    assert screenshots.screen_of(drawn) == ["start", "bar 100%", "high", ""]
    assert screenshots.screen_of("\x1b[31mred\x1b[0m") == ["\x1b[31mred\x1b[0m"]


def test_a_dark_page_is_a_copy_that_clicks_its_own_button(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("<body><p>x</p></body>")
    assert 'getElementById("theme").click();</script></body>' in screenshots.themed(page).read_text()
    assert page.read_text() == "<body><p>x</p></body>"


def test_pictures_in_the_documentation_are_small_and_all_there() -> None:
    themed = [f"{picture.name}-dark" for picture in screenshots.PICTURES if picture.themed]
    # A leaderboard is shown where the command that makes it is there.
    names = {picture.name for picture in screenshots.PICTURES if picture.name != "leaderboard"} | {*themed}
    found = {path.stem: path for path in screenshots.IMAGES.glob("*.png")}
    assert names <= set(found)
    assert all(path.stat().st_size <= screenshots.LARGEST for path in found.values())
    assert (screenshots.IMAGES / "console.svg").read_text().startswith("<svg")
