"""The site: its pages, their order, the reference, and that nothing on it needs a network."""

import doctest
import inspect
import json
import re
import warnings
from html import unescape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from urllib.parse import quote, unquote, urlparse

import pytest

import website.docstrings
import website.pages
import website.reference
from benchmarks.docs.browser import ABSENT, find_browser, opened
from website.docstrings import as_markdown
from website.pages import DOCS, ROOT, for_site, links_of, navigation, site_path, source_page, source_pages
from website.reference import INTERNAL, MODULES, module_page, public_names, short, signature_of, value_text
from website.search import WEIGHTS, WORDS

IMPORTED = re.compile(r"^(?:from|import) (treadle[\w.]*)", re.MULTILINE)
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


def packages() -> list[str]:
    """Return the packages that list names in `__all__`."""
    found = sorted((ROOT / "treadle").rglob("__init__.py"))
    return [
        ".".join(path.parent.relative_to(ROOT).parts) for path in found if re.search("^__all__", path.read_text(), re.M)
    ]


def test_the_reference_misses_no_package_that_has_public_names() -> None:
    assert [name for name in packages() if name not in (*MODULES, *INTERNAL)] == []
    assert set(INTERNAL) <= set(packages()) - set(MODULES)


def test_the_reference_has_every_module_that_pages_and_examples_import_from() -> None:
    pages = [*(ROOT / DOCS).rglob("*.md"), ROOT / "README.md", *(ROOT / "examples").rglob("*.py")]
    said = [one for page in pages if page.name != "decisions.md" for one in IMPORTED.findall(page.read_text())]
    assert len(said) > 100
    assert sorted({name for name in said if name not in (*MODULES, *INTERNAL) and "demo" not in name}) == []


def test_each_word_that_is_searched_for_has_one_page() -> None:
    words = [word.lower() for page in WORDS.values() for word in page]
    assert len(words) == len(set(words))
    pages = {str(path.relative_to(ROOT / DOCS)) for path in (ROOT / DOCS).rglob("*.md")}
    assert set(WORDS) | set(WEIGHTS) <= pages


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once: any warning of the build ends it."""
    if find_spec("mkdocs") is None or find_spec("material") is None:
        pytest.skip("MkDocs and its theme are not installed: pip install 'treadle[docs]'")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        warnings.simplefilter("ignore")  # those of Python, in the tool; those of the build end it
        build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(folder)))
    return folder


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert {"index.html", "tutorial.html", "404.html"} <= {page.name for page in pages}
    assert (site / "reference" / "treadle.nas.html").is_file()
    loaded = re.compile(r"<(?:script|img|iframe)[^>]+src=\"https?:|<link[^>]+(?:stylesheet|icon)[^>]+href=\"https?:")
    assert [page.name for page in pages if loaded.search(page.read_text())] == []


@pytest.mark.slow
def test_the_search_has_words_for_its_pages_and_no_tests_or_programs(site: Path) -> None:
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert [one["location"] for one in found if one["location"].startswith("source/")] == []
    tags = {one["location"]: one.get("tags") for one in found if "#" not in one["location"]}
    for page, words in WORDS.items():
        assert tags[page.replace(".md", ".html")] == words


ASKED = {
    "validation set": "data.html",
    "data augmentation": "data.html",
    "multi-GPU": "parallel.html",
    "LoRA": "recipes/adapters.html",
    "early stopping": "callbacks.html",
    "mixed precision": "precision.html",
    "checkpoint": "resume.html",
    "EarlyStoppingCallback": "reference/treadle.callbacks.html",
}
"""What is typed into the search, and what is the first answer."""


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason=ABSENT)
def test_what_people_search_for_leads_to_the_page_that_has_the_answer(site: Path) -> None:
    # The search of the theme is a worker, which needs the page: each query is a page of its own, in a frame.
    frames = "".join(f'<iframe src="index.html?q={quote(one)}" width="1200" height="900"></iframe>' for one in ASKED)
    (site / "asked.html").write_text(f"""{frames}<script>
const first = (frame) => frame.contentDocument.querySelector(".md-search-result__item a");
setInterval(() => {{
  const found = [...document.querySelectorAll("iframe")].map((one) => first(one)?.getAttribute("href") ?? "");
  document.title = JSON.stringify(found);
}}, 200);
</script>""")
    page = opened(site / "asked.html", "--dump-dom", "--allow-file-access-from-files")
    title = re.search("<title>(.*?)</title>", page)
    assert title is not None
    found = [unquote(urlparse(one).path).rpartition("/site0/")[2] for one in json.loads(unescape(title[1]))]
    assert found == list(ASKED.values())
