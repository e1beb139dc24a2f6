"""The site: its pages, their order, the reference, and that nothing on it needs a network."""

import doctest
import inspect
import re
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import website.docstrings
import website.pages
import website.reference
from website.docstrings import as_markdown
from website.pages import DOCS, ROOT, for_site, links_of, navigation, site_path, source_page, source_pages
from website.reference import MODULES, module_page, public_names, short, signature_of, value_text

LISTED = ("callbacks", "data", "parallel", "recsys", "nas", "config", "engine")
"""Modules that the reference must have, besides `treadle` itself."""


def test_every_page_has_its_place_in_the_navigation_once() -> None:
    parts = navigation((ROOT / DOCS / "index.md").read_text())
    pages = [path for part in parts[1:] for rows in part.values() for row in rows for path in row.values()]
    there = {str(path.relative_to(ROOT / DOCS)) for path in (ROOT / DOCS).rglob("*.md")} - {"index.md"}
    assert sorted(pages) == sorted(there)
    assert pages[0] == "tutorial.md"


def test_what_pages_link_to_outside_of_docs_becomes_a_page() -> None:
    made = source_pages()
    wanted = {
        site_path(target)
        for page in sorted((ROOT / DOCS).rglob("*.md"))
        for target in links_of(str(page.relative_to(ROOT)), page.read_text())
        if not target.startswith(f"{DOCS}/")
    }
    assert wanted
    assert wanted <= set(made)
    assert made["source/examples/gan.py.md"].startswith('# examples/gan.py\n\n````python\n"""Trains a generator')


def test_links_lead_to_the_pages_of_the_site_and_blocks_stay_as_they_are() -> None:
    text = "[a](../examples/gan.py) [b](loop.md#phases) [c](#here) [d](https://x.y/z)\n```python no-run\n[e](f)\n```\n"
    assert for_site("docs/recipes.md", text) == (
        "[a](source/examples/gan.py.md) [b](loop.md#phases) [c](#here) [d](https://x.y/z)\n```python\n[e](f)\n```\n"
    )
    assert for_site("docs/recipes/gan.md", "[a](../loop.md)") == "[a](../loop.md)"
    assert for_site("CONTRIBUTING.md", "[a](docs/loop.md) [b](CHANGELOG.md)") == "[a](../loop.md) [b](CHANGELOG.md)"


def test_a_folder_is_shown_as_the_names_in_it(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("b.py", "inner/a.py", "__init__.py", "notes.txt"):
        (tmp_path / name).touch()
    assert source_page(tmp_path, "tests/x") == "# tests/x\n\n- `b.py`\n- `inner/a.py`\n"


def test_a_docstring_becomes_markdown() -> None:
    text = """Return `x` times two.

    Args:
        x, y: Numbers:
            two of them.

    Returns:
        The product.

    >>> 1 + 1
    2
    """
    assert as_markdown(inspect.cleandoc(text)) == (
        "Return `x` times two.\n\n**Args**\n\n- `x`, `y`: Numbers: two of them.\n\n**Returns** The product.\n\n"
        "```pycon\n>>> 1 + 1\n2\n```"
    )


def test_signatures_are_short_and_have_no_addresses() -> None:
    def function(first: Path, *, second: "dict[str, int] | None" = None, third: object = short) -> re.Pattern[str]:
        raise NotImplementedError

    assert signature_of("f", function) == (
        "f(first: Path, *, second: dict[str, int] | None = None, third: object = short) -> Pattern[str]"
    )
    assert signature_of("f", function, bound=True) == signature_of("f", function)


def test_a_value_is_described_by_the_string_below_it() -> None:
    assert value_text("treadle", "DEFAULT_CALLBACKS").startswith("The callbacks of a trainer that is given none")


@pytest.mark.parametrize("name", MODULES)
def test_the_reference_of_a_module_has_every_public_name(name: str) -> None:
    page = module_page(name)
    assert page.startswith(f"# {name}\n")
    assert " at 0x" not in page
    module = import_module(name)
    names = [one for one in public_names(module) if not hasattr(getattr(module, one), "__path__")]
    modules = {one for one in names if type(getattr(module, one)).__name__ == "module"}
    assert [one for one in names if one not in modules and f"\n## {one}\n" not in page] == []


@pytest.mark.parametrize("module", [website.docstrings, website.pages, website.reference], ids=lambda one: one.__name__)
def test_the_examples_in_docstrings_of_the_site_are_right(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def test_the_reference_has_the_modules_that_people_use() -> None:
    assert {"treadle", *(f"treadle.{name}" for name in LISTED)} <= set(MODULES)
    assert "### Trainer.train\n" in module_page("treadle")


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec("mkdocs") is None or find_spec("material") is None:
        pytest.skip("MkDocs and its theme are not installed: pip install 'treadle[docs]'")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of Python, in the tool; those of the build end it
        build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path / "site")))
    pages = list((tmp_path / "site").rglob("*.html"))
    assert {"index.html", "tutorial.html", "404.html"} <= {page.name for page in pages}
    assert (tmp_path / "site" / "reference" / "treadle.nas.html").is_file()
    loaded = re.compile(r"<(?:script|img|iframe)[^>]+src=\"https?:|<link[^>]+(?:stylesheet|icon)[^>]+href=\"https?:")
    assert [page.name for page in pages if loaded.search(page.read_text())] == []
