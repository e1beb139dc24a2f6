"""Records the golden file anew: `python -m tests.golden`, only where a change of what programs do is meant.

`python -m tests.golden --only console` records what programs print, `--only config` which settings they keep; neither
does where programs do anything else than before.
"""

import json
import sys

from tests.golden.programs import GOLDEN, PROGRAMS, run
from tests.golden.recording import bits_of_this_machine


def main() -> None:
    """Run every program in an empty folder, and write what each did."""
    found = {}
    for name in PROGRAMS:
        found[name] = run(name)
        print(name)
    keys: dict[str, list[str]] = {}
    for record in found.values():
        text = "\n".join(record["keys"])
        label = next((label for label, known in keys.items() if "\n".join(known) == text), f"keys {len(keys) + 1}")
        keys[label] = record["keys"]
        record["keys"] = label
    contents = {"machine": bits_of_this_machine(), "keys": keys, "programs": found}
    GOLDEN.write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")


def record_only(wanted: str) -> None:
    """Run every program, and write one part of what each did, and nothing else."""
    contents = json.loads(GOLDEN.read_text(encoding="utf-8"))
    if contents["machine"] != bits_of_this_machine():
        sys.exit("this processor rounds otherwise than the one that the file was recorded on: record it there")
    for name in PROGRAMS:
        found, known = json.loads(json.dumps(run(name))), contents["programs"][name]
        expected = {**known, "keys": contents["keys"][known["keys"]]}
        changed = [part for part in expected if part != wanted and found[part] != expected[part]]
        if changed:
            sys.exit(f"{name}: {', '.join(changed)} changed too, and only {wanted} may; nothing was written")
        known[wanted] = found[wanted]
        print(name)
    GOLDEN.write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record_only(sys.argv[2]) if sys.argv[1:2] == ["--only"] else main()
