"""Whether a file of a run was written by this user: a mark in it that nobody else can make.

The mark is a keyed checksum. The key lies in the user's own folder of states (`$XDG_STATE_HOME/treadle/key`, by default
`~/.local/state/treadle/key`) and is made when the first file is marked. Who has no such folder, as in some containers,
marks nothing, and is asked instead.
"""

import hmac
import json
import os
import secrets
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

KEY = "key"
COMMENT = "# mark of the user who wrote this: "
MADE_BY = ("program", "command", "folder")
"""What of a manifest says how a run is made again."""


def mark_file(path: Path) -> None:
    """Add the user's mark to a YAML file as a comment, in the place of an earlier one.

    Without a key, and on a full disk, the file stays as it is: it is whole, and its user is asked when it matters.
    """
    # It loads torch, which who only looks at a mark does not need.
    from treadle.files.atomic_io import replace_text

    text = _unmarked(path.read_text(encoding="utf-8"))
    mark = _mark(text)
    if mark is not None:
        with suppress(OSError):
            replace_text(path, f"{text}{COMMENT}{mark}\n")


def is_own_file(path: Path) -> bool:
    """Whether a file has the mark of this user, and is as it was when it got it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    body = _unmarked(text)
    return _is_mark(text[len(body) :].removeprefix(COMMENT).strip(), body)


def mark_text(text: str) -> str | None:
    """Return the user's mark for a text; None without a key."""
    return _mark(text)


def is_own_text(mark: Any, text: str) -> bool:
    """Whether `mark` is the mark of this user for a text."""
    return _is_mark(mark, text)


def manifest_mark(manifest: dict[str, Any]) -> str | None:
    """Return the user's mark for what a manifest says of how its run is made again; None without a key."""
    return _mark(_how(manifest))


def is_own_manifest(manifest: dict[str, Any]) -> bool:
    """Whether a manifest has the mark of this user for how its run is made again."""
    return _is_mark(manifest.get("mark"), _how(manifest))


def _how(manifest: dict[str, Any]) -> str:
    return json.dumps([manifest.get(name) for name in MADE_BY], default=str)


def _unmarked(text: str) -> str:
    place = text.rfind(COMMENT)
    is_last = place >= 0 and "\n" not in text[place:].rstrip("\n") and text[:place][-1:] in ("", "\n")
    return text[:place] if is_last else text


def _mark(text: str) -> str | None:
    key = _key(make=True)
    return None if key is None else hmac.new(key, text.encode(), sha256).hexdigest()


def _is_mark(mark: Any, text: str) -> bool:
    key = _key(make=False)
    if key is None or not isinstance(mark, str) or not mark.isascii():
        return False
    return hmac.compare_digest(hmac.new(key, text.encode(), sha256).hexdigest(), mark)


def _key(*, make: bool) -> bytes | None:
    """Return the key of this user; None if there is none, and none can be made."""
    try:
        path = _folder() / KEY
        if make and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write_once(path)
        key = path.read_bytes()
    except (OSError, RuntimeError):  # without a home there is no folder
        return None
    return key if len(key) >= 32 else None


def _write_once(path: Path) -> None:
    """Write a new key, unless another process does so at this moment: whoever comes second uses the first one's."""
    temporary = path.with_name(f"{KEY}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_hex(32).encode())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return
    finally:
        os.unlink(temporary)


def _folder() -> Path:
    chosen = os.environ.get("XDG_STATE_HOME")
    return (Path(chosen) if chosen else Path.home() / ".local" / "state") / "treadle"
