"""A lock on an open file, which the system takes back from a process that dies: of POSIX, or what Windows has."""

import errno
import os
import sys

if sys.platform == "win32":
    import msvcrt

    BEYOND = 2**30
    """The byte that is locked on Windows, where others cannot read what is locked: far behind all that is there."""

    def lock_file(descriptor: int, *, shared: bool = False) -> None:
        """Lock an open file, or fail at once.

        Windows has no shared locks of this kind: who only looks keeps others out for that moment.

        Raises:
            BlockingIOError: Another process has locked it.
            OSError: The file system has no locks.
        """
        os.lseek(descriptor, BEYOND, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):
                raise BlockingIOError(errno.EAGAIN, "locked by another process") from error
            raise

else:
    import fcntl

    def lock_file(descriptor: int, *, shared: bool = False) -> None:
        """Lock an open file, or fail at once; closing it, or the end of the process, unlocks it.

        Args:
            descriptor: The file.
            shared: Whether others may lock it in this way, too.

        Raises:
            BlockingIOError: Another process has locked it.
            OSError: The file system has no locks.
        """
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
