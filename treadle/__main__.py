"""`python -m treadle`: the `treadle` command, where its script is not on the path."""

from treadle.cli import app

app(prog_name="treadle")
