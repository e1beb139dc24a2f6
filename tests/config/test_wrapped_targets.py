"""Targets that are not what they look like: class methods of a parent, and callables that wrap others."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle import nas
from treadle.config import ConfigDict, LazyConfig, instantiate
from treadle.config import LazyCall as L
from treadle.config.arguments import accepted_names, known_names
from treadle.config.targets import target_name, title
from treadle.errors import ConfigError


class Parent:
    """Has a class method that makes one."""

    def __init__(self, width: int, **more: Any) -> None:
        self.width, self.more = width, more

    @classmethod
    def of(cls, width: int) -> "Parent":
        return cls(width)


class Child(Parent):
    """Inherits it."""

    class Inner(Parent):
        """Inherits it too, further inside."""


def open_to_more(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a constructor so that it takes anything, as the configs of some libraries do."""

    @functools.wraps(function)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        more = {name: kwargs.pop(name) for name in list(kwargs) if name not in ("width", "layers")}
        function(self, *args, **kwargs)
        self.more = more

    return wrapped


class Settings:
    """Takes two arguments by its signature, and any others."""

    @open_to_more
    def __init__(self, width: int = 1, layers: int = 2) -> None:
        self.width, self.layers = width, layers


def times(function: Callable[..., int]) -> Callable[..., int]:
    """Give a function one more argument."""

    @functools.wraps(function)
    def wrapped(width: int, factor: int = 1) -> int:
        return factor * function(width)

    return wrapped


def area(width: int) -> int:
    return width * width


scaled_area = times(area)


def again(config: Any, folder: Path) -> Any:
    """Return a config as it is after it was saved and loaded."""
    LazyConfig.save({"made": config}, folder / "config.yaml")
    return LazyConfig.load(folder / "config.yaml").made


@pytest.mark.parametrize("kind", [Parent, Child, Child.Inner])
def test_an_inherited_class_method_is_saved_as_that_of_its_own_class(tmp_path: Path, kind: type[Parent]) -> None:
    call = again(L(kind.of)(width=3), tmp_path)
    assert call._target_ == f"{__name__}.{kind.__qualname__}.of"
    made = instantiate(call)
    assert (type(made), made.width) == (kind, 3)
    assert title(kind.of) == f"{kind.__qualname__}.of"


def test_class_methods_of_built_in_classes_have_a_name() -> None:
    assert target_name(dict.fromkeys) == "builtins.dict.fromkeys"


def test_an_inherited_class_method_of_a_config_file_is_its_own(write: Any, tmp_path: Path) -> None:
    file = write(
        "models.py",
        f"""
        from {__name__} import Parent
        from treadle.config import LazyCall

        class Base(Parent):
            pass

        class Own(Base):
            pass

        model = LazyCall(Own.of)(width=3)
        """,
    )
    call = again(LazyConfig.load(file).model, tmp_path)
    assert call._target_ == f"{(tmp_path / 'models.py').as_posix()}:Own.of"
    assert type(instantiate(call)).__name__ == "Own"


def test_a_wrapper_may_take_more_than_what_it_wraps(tmp_path: Path) -> None:
    made = instantiate(again(L(Settings)(width=5, num_labels=3), tmp_path))
    assert (made.width, made.layers, made.more) == (5, 2, {"num_labels": 3})
    assert accepted_names(Settings) is None
    assert known_names(Settings) == ["width", "layers"]


def test_a_wrapper_with_arguments_of_its_own_takes_these(tmp_path: Path) -> None:
    assert instantiate(again(L(scaled_area)(width=3, factor=2), tmp_path)) == 18
    with pytest.raises(ConfigError, match=r"^facto: area takes no 'facto'; did you mean 'factor'\?"):
        L(scaled_area)(width=3, facto=2)


def test_a_wrapper_is_saved_by_its_own_name_and_not_as_what_it_wraps(write: Any, tmp_path: Path) -> None:
    assert target_name(scaled_area) == f"{__name__}.scaled_area"
    file = write(
        "calls.py",
        f"""
        from {__name__} import times
        from treadle.config import LazyCall

        def area(width):
            return width * width

        larger = times(area)
        made = LazyCall(larger)(width=3, factor=2)
        """,
    )
    call = again(LazyConfig.load(file).made, tmp_path)
    assert call._target_ == f"{(tmp_path / 'calls.py').as_posix()}:larger"
    assert instantiate(call) == 18


def test_a_wrapper_that_no_module_holds_is_refused_and_not_saved_as_what_it_wraps(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^made\._target_: .* has no name that leads back to it; define it at the"):
        LazyConfig.save({"made": L(times(area))(width=3)}, tmp_path / "config.yaml")


def test_an_override_knows_the_arguments_behind_a_wrapper() -> None:
    config = ConfigDict({"settings": L(Settings)(width=5)})
    with pytest.raises(ConfigError, match=r"Settings takes it: \+settings\.layers=\.\.\. adds it"):
        LazyConfig.apply_overrides(config, ["settings.layers=3"])
    LazyConfig.apply_overrides(config, ["+settings.anything=3"])
    assert instantiate(config.settings).more == {"anything": 3}


def test_a_class_whose_calls_are_recorded_takes_what_it_always_took() -> None:
    @nas.recorded
    class Recorded:
        def __init__(self, width: int) -> None:
            self.width = width

    with pytest.raises(ConfigError, match=r"Recorded takes no 'widht'; did you mean 'width'\?"):
        L(Recorded)(widht=3)
