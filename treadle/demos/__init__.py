"""Small complete runs to begin with, one through each door; their data is made on the spot or is scikit-learn's."""

from treadle.demos.menu import DEMOS, Demo, find_demo

__all__ = ["DEMOS", "Demo", "find_demo"]
