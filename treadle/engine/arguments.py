"""The command line of a training program, and what comes before training."""

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf, open_dict

from treadle.config import LazyConfig, try_get_key
from treadle.credentials import without_passwords
from treadle.engine import dist
from treadle.engine.building import complete
from treadle.engine.keys import check_keys
from treadle.engine.logs import setup_logger
from treadle.engine.options import check_supported
from treadle.errors import ConfigError

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
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint, if there is one")
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
    logger.info("rank %d of %d; command line: %s", dist.get_rank(), dist.get_world_size(), command)
    logger.info("the run goes to %s, with this config:\n%s", folder.resolve(), LazyConfig.to_py(full))


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
