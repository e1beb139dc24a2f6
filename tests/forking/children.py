"""Where tests get processes that they kill: forks of one that has imported what those need.

A process that runs tests has one such server, and it imports what was asked for last before its first fork: nobody else
asks.
"""

import multiprocessing

# Most of a start would be these imports. The first optimizer of a process would import the compiler.
PRELOADED = ["tests.crash.program", "tests.crash.saves", "tests.data.prepare.test_prepare", "torch._dynamo"]

server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(PRELOADED)
