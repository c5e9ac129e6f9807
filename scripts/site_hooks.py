"""Hooks of the documentation site (mkdocs.yml).

Links to files of the repository outside docs/ work where pages are read in the repository; the site, which does not have those
files, shows their paths. The Python reference is read from a copy of the package. llms.txt lists every page for language models.
A sitemap needs the site's address, which mkdocs.yml does not name, so none is written.
"""

import re
import shutil
import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

__all__ = ["copy_package", "on_config", "on_nav", "on_page_markdown", "on_post_build", "on_shutdown", "plain_text"]

PAGES: list[Page] = []
COPIES: list[Path] = []


def copy_package(folder: Path) -> None:
    """Copies the package into `folder`, without the compiled module and modules made at import: griffe reads their stubs."""
    ignored = shutil.ignore_patterns("_native.py", "engine_options.py", "sampling_options.py", "*.so", "*.gguf", "__pycache__")
    shutil.copytree(ROOT / "python" / "weft", folder / "weft", ignore=ignored, dirs_exist_ok=True)


@event_priority(100)  # Before mkdocstrings reads its settings.
def on_config(config: MkDocsConfig) -> None:
    """Lets the Python reference read the copy."""
    COPIES.append(Path(tempfile.mkdtemp(prefix="weft-docs-")))
    copy_package(COPIES[-1])
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(COPIES[-1])]


def on_shutdown() -> None:
    """Deletes the copies."""
    for folder in COPIES:
        shutil.rmtree(folder)


def on_nav(nav: Navigation, **_: object) -> None:
    """Remembers the pages in the order of the navigation."""
    PAGES[:] = nav.pages


ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Replaces links to repository files by their paths, and describes the page by its first paragraph."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def without_link(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = (folder / target.partition("#")[0]).resolve()
        if re.match(r"[a-z]+:|[#/]", target) or not path.exists() or path.is_relative_to(ROOT / "docs"):
            return link[0]
        name = f"`{path.relative_to(ROOT)}`"
        return text if text.startswith("`") else f"{text} ({name})"

    markdown = LINK.sub(without_link, markdown)
    if "description" not in page.meta:
        paragraphs = [part for part in markdown.split("\n\n") if part and part[0] not in "#<!|-" and not part.startswith("```")]
        page.meta["description"] = plain_text(paragraphs[0]) if paragraphs else ""
    return markdown


def plain_text(paragraph: str) -> str:
    """Returns a paragraph of Markdown as one line of text, without the marks of links, code and emphasis."""
    return " ".join(re.sub(r"`|\*\*", "", LINK.sub(r"\1", paragraph)).split())


def on_post_build(config: MkDocsConfig, **_: object) -> None:
    """Writes llms.txt (https://llmstxt.org), each page's title, address and description, and deletes an empty sitemap."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    lines += [f"- [{page.title}]({page.url or '.'}): {page.meta.get('description', '')}" for page in PAGES]
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if not config.site_url:
        for name in ("sitemap.xml", "sitemap.xml.gz"):
            Path(config.site_dir, name).unlink(missing_ok=True)
