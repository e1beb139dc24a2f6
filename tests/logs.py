"""The log of Treadle, which is the process's and not a test's."""

import logging


def forget_logs() -> None:
    """Close what runs of the engine log to, and take back from which level on, so that no other test logs so."""
    logger = logging.getLogger("treadle")
    for handler in [handler for handler in logger.handlers if getattr(handler, "of_treadle", False)]:
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(logging.NOTSET)
