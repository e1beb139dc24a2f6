"""A project to begin with, written from a template."""

from treadle.starting.project import held_before, package_of, write_project

__all__ = ["held_before", "package_of", "write_project"]
