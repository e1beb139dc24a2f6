"""What the compiler made for a run, kept in its folder: whoever goes on with it need not wait for the compiler again.

This is code. It is loaded only if the user's own mark is on it, which nobody else can make, and its checksum is right;
a run that comes from somebody else is compiled anew.
"""

import hashlib
import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch

from treadle.files.atomic_io import replace_file, replace_text
from treadle.files.ownership import is_own_text, mark_text

logger = logging.getLogger(__name__)

ROOM, CODE, FACTS = "compiled", "code.bin", "facts.json"
"""The folder in that of the run, the file with the compiler's code, and the one that says whose it is."""


def save_artifacts(folder: Path) -> bool:
    """Write what the compiler made in this process into the folder of a run; return whether there was anything.

    A disk that does not take it costs the next start some time, and this one nothing.
    """
    # Nothing was compiled where nobody loaded the compiler.
    if "torch._inductor" not in sys.modules or not folder.is_dir():
        return False
    made = torch.compiler.save_cache_artifacts()
    if made is None:
        return False
    facts = {"checksum": hashlib.sha256(made[0]).hexdigest(), "torch": torch.__version__}
    mark = mark_text(_signed(facts))
    if mark is None:
        # Without the user's key nobody would load it.
        return False
    try:
        (folder / ROOM).mkdir(exist_ok=True)
        replace_file(folder / ROOM / CODE, lambda path: path.write_bytes(made[0]))
        replace_text(folder / ROOM / FACTS, json.dumps({**facts, "mark": mark}))
    except OSError as error:
        logger.warning("what was compiled is not kept for the next start: %s", error)
        return False
    return True


def load_artifacts(folder: Path) -> str:
    """Give the compiler what it made for a run earlier; return why not, empty if it has it or there is nothing.

    Args:
        folder: The folder of the run.
    """
    room = folder / ROOM
    if not (room / FACTS).is_file():
        return ""
    try:
        facts: Any = json.loads((room / FACTS).read_text(encoding="utf-8"))
        code = (room / CODE).read_bytes()
    except (OSError, ValueError, RecursionError) as error:
        return f"what was compiled for {folder} cannot be read ({error}), so it is compiled anew"
    if not isinstance(facts, dict) or not is_own_text(facts.get("mark"), _signed(facts)):
        return f"what was compiled for {folder} is code without your mark, so it is not loaded but compiled anew"
    if hashlib.sha256(code).hexdigest() != facts.get("checksum"):
        return f"what was compiled for {folder} is damaged, so it is compiled anew"
    if facts.get("torch") == torch.__version__:
        torch.compiler.load_cache_artifacts(code)
    return ""


def _signed(facts: dict[str, Any]) -> str:
    return json.dumps([facts.get("checksum"), facts.get("torch")])
