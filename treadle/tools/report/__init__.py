"""A run, or several, as one web page that needs nothing beside it."""

from treadle.runs.reader import Run, read_run
from treadle.tools.report.page import ReportCallback, page_of, write_report

__all__ = ["ReportCallback", "Run", "page_of", "read_run", "write_report"]
