"""Hooks of the documentation site (mkdocs.yml).

Links to files of the repository outside docs/ work where pages are read in the repository; the site, which does not have those
files, shows their paths. llms.txt lists every page for language models.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

__all__ = ["on_nav", "on_page_markdown", "on_post_build"]

PAGES: list[Page] = []


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
        paragraphs = [part for part in markdown.split("\n\n") if part and part[0] not in "#<!|`-["]
        page.meta["description"] = " ".join(paragraphs[0].split()) if paragraphs else ""
    return markdown


def on_post_build(config: MkDocsConfig, **_: object) -> None:
    """Writes llms.txt (https://llmstxt.org): each page's title, address and description."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    lines += [f"- [{page.title}]({page.url or '.'}): {page.meta.get('description', '')}" for page in PAGES]
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
