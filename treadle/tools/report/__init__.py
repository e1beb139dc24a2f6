"""A run, or several, as one web page that needs nothing beside it."""

from treadle.runs.reader import Run, read_run
from treadle.tools.report.page import ReportCallback, render_page, write_report

__all__ = ["ReportCallback", "Run", "read_run", "render_page", "write_report"]
