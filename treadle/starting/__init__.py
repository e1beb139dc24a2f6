"""A project to begin with, written from a template."""

from treadle.starting.project import package_of, write_project

__all__ = ["package_of", "write_project"]
