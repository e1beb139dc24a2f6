"""Chromium without a window: pages are opened, and pictures of them taken."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
VARIABLE = "TREADLE_CHROMIUM"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    # The page counts time while it draws, and not while this machine is busy with something else.
    "--virtual-time-budget=20000",
)
ABSENT = f"needs Chromium, which draws pages: put one of {', '.join(NAMES)} on the path, or its path into {VARIABLE}"


def find_browser() -> str | None:
    """Return the path of Chromium: what the environment variable says, or the first that is on the path."""
    given = os.environ.get(VARIABLE)
    if given:
        return shutil.which(given)
    return next(filter(None, map(shutil.which, NAMES)), None)


def opened(page: Path | str, *options: str, longest_s: float = 180) -> str:
    """Open a page in Chromium, and return what it printed.

    Args:
        page: The file, or its address.
        options: Further arguments, such as "--dump-dom".
        longest_s: Seconds after which it is given up.

    Raises:
        FileNotFoundError: There is no Chromium.
    """
    return looked_at(page, *options, longest_s=longest_s)[0]


def looked_at(page: Path | str, *options: str, longest_s: float = 180) -> tuple[str, list[str]]:
    """Open a page in Chromium, and return what it printed, and the lines of the page's console.

    The arguments are those of `opened`.

    Raises:
        FileNotFoundError: There is no Chromium.
    """
    browser = find_browser()
    if browser is None:
        raise FileNotFoundError(ABSENT)
    address = page if isinstance(page, str) else page.as_uri()
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *FLAGS, "--enable-logging=stderr", f"--user-data-dir={profile}", *options, address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=longest_s, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def take_picture(page: Path, target: Path, width: int, height: int) -> None:
    """Take a picture of the upper part of a page."""
    opened(page, f"--window-size={width},{height}", f"--screenshot={target}")
