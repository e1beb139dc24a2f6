"""Programs to examine are run by tests, not imported by whoever looks for tests."""

collect_ignore_glob = ["faults/*.py", "clean/*.py"]
