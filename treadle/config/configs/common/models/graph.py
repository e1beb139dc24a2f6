"""Graph mode, switched on: a config that takes these settings asks for it. docs/engine.md says what it is here."""

graph = {
    "enabled": True,
    # The next three are arguments of torch.compile.
    "backend": "inductor",
    "mode": None,
    "fullgraph": False,
    # For how many sets of input shapes the model is compiled.
    "compile_budget": 8,
    "auto_parallel": {"enabled": False},
}

# As in common/train.py: what the default does not tell.
_types = {"mode": str | None}
