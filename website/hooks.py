"""What MkDocs asks while it builds: the order of pages, those that are in no file, and where links lead."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from website.pages import DOCS, ROOT, for_site, navigation, source_pages
from website.reference import MODULES, reference_pages
from website.search import search_settings

ELSEWHERE = '<script src="https://unpkg.com/iframe-worker/shim"></script>'
"""What the theme would load from elsewhere to let a page be searched that was opened as a file."""
HERE = Path(__file__).parent / "search_from_file.js"
"""What does the same here."""
STYLE = Path(__file__).parent / "site.css"
"""In what the site differs from its theme."""


def on_config(config: Any) -> Any:
    """Put the pages into the order of the index, and the reference behind them."""
    pages = navigation((ROOT / DOCS / "index.md").read_text(encoding="utf-8"))
    titled = [{name: f"reference/{name}.md"} for name in MODULES]
    config.extra_css.append(STYLE.name)
    config.nav = [*pages, {"API reference": ["reference/index.md", *titled]}]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the reference, and a page for each file outside of `docs/` that is linked to."""
    for path, text in {**reference_pages(), **source_pages()}.items():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, STYLE.name, content=STYLE.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links of the pages in `docs/` to pages of the site; generated ones do already. Say what is searched."""
    page.meta.update(search_settings(page.file.src_uri))
    return markdown if page.file.generated_by else for_site(f"{DOCS}/{page.file.src_uri}", markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Let nothing be loaded from elsewhere."""
    return output.replace(ELSEWHERE, f"<script>\n{HERE.read_text(encoding='utf-8')}</script>")


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """Do the same for pages that are no pages of `docs/`, such as the one for a wrong address."""
    return on_post_page(output_content, None, config)
