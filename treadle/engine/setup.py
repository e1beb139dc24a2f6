"""The command line of a training program, and what comes before training."""

import argparse
import logging
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from omegaconf import OmegaConf, open_dict

from treadle.config import LazyConfig, try_get_key
from treadle.console.lines import DETAIL
from treadle.engine import dist
from treadle.engine.config.builders import complete
from treadle.engine.config.keys import check_keys
from treadle.engine.config.options import check_supported
from treadle.errors import ConfigError
from treadle.files.bounded_io import without_passwords
from treadle.parallel import Processes
from treadle.parallel.launch.notebook import HOST, check_that_others_can_start, free_port, start_group
from treadle.runs.status import made

# Where the log of a run goes


FILE_FORMAT = logging.Formatter("[%(asctime)s %(name)s] %(levelname)s: %(message)s", datefmt="%m/%d %H:%M:%S")
NAME = "treadle"


class ConsoleFormatter(logging.Formatter):
    """Shows messages as they are; what is wrong says how much it matters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return what is shown of a record."""
        text = super().format(record)
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"


class ConsoleHandler(logging.StreamHandler[Any]):
    """Shows what a user wants to know; if it is verbose everything, with times.

    Args:
        verbose: Whether it is.
    """

    def __init__(self, *, verbose: bool) -> None:
        super().__init__(sys.stdout)
        self.verbose = verbose
        self.setFormatter(FILE_FORMAT if verbose else ConsoleFormatter())

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave out details."""
        return (self.verbose or not getattr(record, "is_detail", False)) and bool(super().filter(record))


def setup_logger(
    output_dir: str | os.PathLike[str] | None = None, *, level: int = logging.INFO, verbose: bool | None = None
) -> logging.Logger:
    """Have what Treadle logs shown on the console of the first process, and kept in `output_dir/log.txt`.

    The console has one line for what a user wants to know, and the file all of it, with times. Other processes write
    `log.txt.rank1` and so on. A second call with another folder moves the file there; nothing is shown twice. Where a
    program has configured logging itself, nothing is put on the console.

    Args:
        output_dir: The folder of the run; None only sets up the console.
        level: The least level to take.
        verbose: Whether the console has everything that the file has; by default as the last call said.

    Raises:
        CheckpointError: The folder cannot be made, or not written into.
    """
    root = logging.getLogger(NAME)
    root.setLevel(level)
    own = [handler for handler in root.handlers if getattr(handler, "of_treadle", False)]
    if verbose is None:
        verbose = any(isinstance(handler, ConsoleHandler) and handler.verbose for handler in own)
    for handler in own:
        root.removeHandler(handler)
        handler.close()
    if dist.is_main_process() and not logging.getLogger().handlers:
        _add(root, ConsoleHandler(verbose=verbose))
    if output_dir is not None:
        _add(root, _file_in(Path(output_dir)))
    return root


def _file_in(folder: Path) -> logging.FileHandler:
    rank = dist.get_rank()
    with made(folder):
        handler = logging.FileHandler(folder / ("log.txt" if rank == 0 else f"log.txt.rank{rank}"), encoding="utf-8")
    handler.setFormatter(FILE_FORMAT)
    return handler


def _add(root: logging.Logger, handler: logging.Handler) -> None:
    handler.of_treadle = True  # type: ignore[attr-defined]
    root.addHandler(handler)


# Starting the processes of a training program from the program itself


def launch(
    main_func: Callable[..., Any],
    num_gpus_per_machine: int,
    num_machines: int = 1,
    machine_rank: int = 0,
    dist_url: str | None = None,
    args: tuple[Any, ...] = (),
    timeout: timedelta | float | None = None,
) -> None:
    """Call `main_func(*args)` in as many processes as were asked for, on this machine and others, and wait for them.

    It is called on every machine. One process in all is this one; where a launcher such as `torchrun` or
    `treadle train` has started the processes already, the function is called here, in each of them. Without GPUs
    the processes train on the CPU.

    Args:
        main_func: What to run; build model, data and trainer inside it.
        num_gpus_per_machine: Processes of each machine, one for each of its GPUs.
        num_machines: How many machines there are.
        machine_rank: Which of them this is, from 0.
        dist_url: Where the processes meet: `tcp://host:port` of the first machine, or "auto" on a single one.
        args: The arguments of `main_func`.
        timeout: How long processes wait for each other, in seconds if it is a number; by default 1,800 seconds.

    Raises:
        ConfigError: A number is none, the machines have no place to meet, or this process cannot start others.
    """
    for name, value, least in (
        ("num_gpus_per_machine", num_gpus_per_machine, 0),
        ("num_machines", num_machines, 1),
        ("machine_rank", machine_rank, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"launch: {name}={value!r} must be a whole number from {least} up")
    if machine_rank >= num_machines:
        raise ConfigError(f"launch: machine_rank={machine_rank}, but there are {num_machines} machines, from 0 up")
    count = max(1, num_gpus_per_machine)
    world = count * num_machines
    if world == 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        main_func(*args)
        return
    host, port = _rendezvous_address(dist_url, num_machines)
    check_that_others_can_start(f"launch: num_gpus_per_machine={num_gpus_per_machine}")
    start_group(
        _joined,
        (main_func, args, _seconds(timeout)),
        count,
        first=machine_rank * count,
        world=world,
        host=host,
        port=port,
    )


def _rendezvous_address(url: str | None, machines: int) -> tuple[str, int]:
    if url in (None, "auto") and machines == 1:
        return HOST, free_port()
    parts = urlsplit(url or "")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme != "tcp" or not host or not port:
        raise ConfigError(
            f"launch: dist_url={url!r} is no place where the processes of {machines} "
            f"machine{'' if machines == 1 else 's'} can meet; give 'tcp://host:port' of the first one"
            + (", or 'auto'" if machines == 1 else "")
        )
    return host, port


def _seconds(timeout: timedelta | float | None) -> float | None:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout


def _joined(main_func: Callable[..., Any], args: tuple[Any, ...], timeout: float | None) -> None:
    """Join the other processes, if there is a timeout to join them with, and run the program."""
    if timeout is not None:
        Processes(timeout=timeout)
    main_func(*args)


logger = logging.getLogger(__name__)

EPILOG = """
keys of the config are changed by path.key=value at the end of the command line:

  %(prog)s --config-file configs/gpt.py train.train_iter=100 optim.lr=1e-3
"""

FAST_DEV_RUN = {"train_epoch": 0, "train_iter": 20, "log_period": 1}
"""What `--fast-dev-run` sets in `train`; evaluation comes every 10 iterations."""


def default_argument_parser(epilog: str | None = None) -> argparse.ArgumentParser:
    """Return a parser with the options that every training program has.

    Args:
        epilog: What to say at the end of the help.
    """
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "train_net.py"
    parser = argparse.ArgumentParser(
        prog=program,
        epilog=EPILOG.replace("%(prog)s", program) if epilog is None else epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config-file", default="", metavar="FILE", help="the config to run")
    parser.add_argument("--resume", action="store_true", help="resume from the newest checkpoint, if there is one")
    parser.add_argument("--eval-only", action="store_true", help="only evaluate")
    parser.add_argument("--fast-dev-run", action="store_true", help="20 iterations, to see whether everything works")
    parser.add_argument("--num-gpus", type=int, default=1, metavar="N", help="processes of each machine, for launch")
    parser.add_argument("--num-machines", type=int, default=1, metavar="N", help="how many machines there are")
    parser.add_argument("--machine-rank", type=int, default=0, metavar="N", help="which machine this is, from 0")
    parser.add_argument(
        "--dist-url", default="auto", metavar="URL", help="where processes meet: tcp://host:port, or auto"
    )
    parser.add_argument("opts", nargs=argparse.REMAINDER, default=[], help="changes to the config: key=value ...")
    return parser


def default_setup(cfg: Any, args: Any) -> None:
    """Prepare a run: apply the options of the command line to `cfg`, check and complete it, make the folder, log.

    Args:
        cfg: The config, changed in place: its `train` has every key then, as that of a `DefaultTrainer` has.
        args: What `default_argument_parser` parsed.

    Raises:
        ConfigError: The config asks for what this version cannot do, or the command line for processes that nobody
            started.
    """
    _check_processes(args)
    if getattr(args, "resume", False):
        _set(cfg, resume=True)
    if getattr(args, "fast_dev_run", False):
        _set(cfg, **FAST_DEV_RUN, evaluation={"eval_period": 10, "eval_after_n_epoch": None})
    full = complete(cfg)
    check_supported(full)
    # A program that evaluates reads `cfg` itself: `DefaultTrainer.test(cfg, ...)`.
    if not OmegaConf.is_readonly(cfg):
        with open_dict(cfg):
            cfg.train = full._get_node("train")
        check_keys(cfg)
    folder = Path(full.train.output_dir)
    setup_logger(folder)
    prepare_environment(full)
    command = without_passwords(" ".join(sys.argv))
    logger.info("rank %d of %d; command line: %s", dist.get_rank(), dist.get_world_size(), command, extra=DETAIL)
    logger.info("the run goes to %s, with this config:\n%s", folder.resolve(), LazyConfig.to_py(full), extra=DETAIL)


def _check_processes(args: Any) -> None:
    asked = max(1, getattr(args, "num_gpus", 1)) * getattr(args, "num_machines", 1)
    if asked > 1 and dist.get_world_size() == 1:
        raise ConfigError(
            f"--num-gpus={args.num_gpus} --num-machines={args.num_machines}, but this is the only process: have the "
            "program call its main by treadle.engine.launch(main, args.num_gpus, ...), or start it with torchrun"
        )


def prepare_environment(cfg: Any) -> None:
    """Set what a config says of how the processes talk to each other; NCCL looks at it when they first do."""
    if try_get_key(cfg, "train.rdma_enabled", default=True) is False:
        os.environ.setdefault("NCCL_IB_DISABLE", "1")


def _set(cfg: Any, **values: Any) -> None:
    with open_dict(cfg):
        cfg.train.update(values)
