"""Whether a run can be made again, bit for bit: some of its steps are, elsewhere, and compared with what it kept."""

from treadle.tools.reproduce.verification import Verification, verify

__all__ = ["Verification", "verify"]
