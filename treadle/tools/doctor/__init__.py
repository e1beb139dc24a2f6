"""A few steps of a program, looked at closely: what is wrong, where, and what to do."""

from treadle.tools.doctor.examination import Examination, examine
from treadle.tools.doctor.findings import Finding, Note

__all__ = ["Examination", "Finding", "Note", "examine"]
