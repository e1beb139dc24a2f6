"""A run, or several, as one web page that needs nothing beside it."""

from treadle.report.page import page_of, write_report
from treadle.report.writing import ReportCallback
from treadle.run_reading import Run, read_run

__all__ = ["ReportCallback", "Run", "page_of", "read_run", "write_report"]
