"""`python -m treadle.cli`: the `treadle` command, for launchers that start modules."""

from treadle.cli.application import app

app(prog_name="treadle")
