"""Where trials run: in the process, in a pool of processes, under torchrun, or on a Ray cluster."""

from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from treadle.search.launchers.base import Ended, Launcher

__all__ = ["LAUNCHERS", "make_launcher"]

LAUNCHERS = ("inline", "processes", "torchrun", "ray")


def make_launcher(
    name: str, workers: int, ended: "Ended", *, timeout: float | None, options: dict[str, Any]
) -> "Launcher":
    """Return the launcher of a name.

    Args:
        name: "inline", "processes", "torchrun" or "ray".
        workers: How many trials may run at a time.
        ended: Called with each trial that has ended.
        timeout: Seconds that a trial may take; None is any number.
        options: Further arguments of the launcher: `processes` of torchrun, `resources` of Ray.
    """
    if name == "inline":
        from treadle.search.launchers.base import Inline

        return Inline(workers, ended)
    if name == "processes":
        from treadle.search.launchers.processes import Processes

        return Processes(workers, ended, timeout=timeout)
    if name == "torchrun":
        from treadle.search.launchers.torchrun import Torchrun

        return Torchrun(workers, ended, timeout=timeout, processes=options["processes"])
    from treadle.search.launchers.ray import Ray

    return Ray(workers, ended, timeout=timeout, resources=options["resources"])


def require_launcher(name: Any, workers: int, timeout: float | None) -> None:
    """Refuse a launcher that there is not, or that cannot do what it is asked to.

    Raises:
        ConfigError: It is unknown, or "inline" is to run several trials at once or to stop one by the clock.
    """
    if name not in LAUNCHERS:
        near = did_you_mean(str(name), LAUNCHERS) or f"; it must be one of {list(LAUNCHERS)}"
        raise ConfigError(f"launcher={name!r} is unknown{near}")
    if workers < 1:
        raise ConfigError(f"workers={workers} must be 1 or more")
    if name == "inline" and workers > 1:
        raise ConfigError(f"workers={workers}: launcher='inline' runs one trial at a time; use launcher='processes'")
    if name == "inline" and timeout is not None:
        raise ConfigError("trial_timeout= needs trials that can be ended from outside; use launcher='processes'")
