"""The config of a run as it is kept in its folder, enough to start the run again."""

import copy
import logging
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from treadle.config import ConfigDict
from treadle.config.targets import target_name
from treadle.errors import ConfigError

logger = logging.getLogger(__name__)

LEFT_TO_CORE = ("callbacks", "max_rollbacks", "microbatch", "gradient_clip_value")
"""Keys of `train` that are written only where somebody set them."""


def config_to_save(cfg: Any, trainer: type | None = None) -> ConfigDict:
    """Return a copy of a config in which interpolations are values, with the trainer that it is for.

    Values that are still to be given, `???`, stay as they are. Of callbacks there is a key only if there are any.

    Args:
        cfg: The config, with every number worked out.
        trainer: The class of a trainer of your own, noted under `trainer` unless the config names one.

    Raises:
        ConfigError: An interpolation refers to nothing.
    """
    form: ConfigDict = copy.deepcopy(cfg)
    try:
        OmegaConf.resolve(form)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the config cannot be saved: {str(error).splitlines()[0]}") from error
    train = form.get("train")
    for key in LEFT_TO_CORE:
        if isinstance(train, DictConfig) and key in train and train[key] is None:
            with open_dict(train):
                del train[key]
    if trainer is not None and form.get("trainer") is None:
        _note_trainer(form, trainer)
    return form


def _note_trainer(form: ConfigDict, trainer: type) -> None:
    try:
        name = target_name(trainer)
    except ConfigError as error:
        logger.info("config.yaml does not say which trainer it is for: %s", error)
        return
    with open_dict(form):
        form.trainer = {"_target_": name}
