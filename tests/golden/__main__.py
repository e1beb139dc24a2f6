"""Records the golden file anew: `python -m tests.golden`, only where a change of what programs do is meant."""

import json

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


if __name__ == "__main__":
    main()
