"""A few steps of a program, looked at closely: what is wrong, where, and what to do."""

from treadle.doctor.examining import Examination, examine
from treadle.doctor.finding import Finding, Note

__all__ = ["Examination", "Finding", "Note", "examine"]
