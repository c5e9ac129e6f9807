"""The documentation site builds strictly, needs no other host, and its links and anchors resolve."""

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.async_api import Request, async_playwright

from tests.browser import launched

ROOT = Path(__file__).parent.parent
SHOWN = [
    "",
    "start/install/",
    "tutorials/loom/",
    "reference/python/",
    "reference/flags/",
    "explanation/architecture/",
    "nothing-here/",
]
"""Addresses of pages that a browser opens; the last does not exist."""


pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    # Without proxies and names: a build that reads from another host fails.
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=180)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Address of a server of the site that answers unknown paths with its 404 page."""

    class Handler(SimpleHTTPRequestHandler):
        def send_error(self, code: int, *_: object) -> None:
            body = (site / "404.html").read_bytes()
            self.send_response(code)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site)))
    Thread(target=server.serve_forever, name="site", daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class Loads(HTMLParser):
    """Collects the addresses that a page loads without being asked."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in ("script", "img", "iframe", "source"):
            self.addresses.append(given.get("src", ""))
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.addresses.append(given.get("href", ""))


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        assert [address for address in loads.addresses if re.match(r"(?:[a-z]+:)?//", address)] == [], page
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)]*", sheet.read_text(encoding="utf-8")) == [], sheet


async def test_pages_open_with_the_network_blocked_and_request_nothing_else(address: str) -> None:
    async with async_playwright() as playwright, launched(playwright) as browser:
        page = await browser.new_page()
        foreign: list[str] = []
        errors: list[str] = []

        def note(request: Request) -> None:
            if not request.url.startswith((address, "data:", "blob:")):
                foreign.append(request.url)

        page.on("request", note)
        page.on("pageerror", lambda error: errors.append(str(error)))
        for path in SHOWN:
            await page.goto(f"{address}/{path}")
            await page.wait_for_selector("h1")
        # The search works from files of the site alone.
        await page.goto(f"{address}/")
        await page.fill("input.md-search__input", "--cache-ram")
        await page.wait_for_selector("article.md-search-result__article")
        assert foreign == []
        assert errors == []


DIAGRAMS = ["architecture.svg", "step.svg", "tiers.svg"]


def test_the_architecture_has_three_diagrams_with_titles_for_light_and_dark_pages(site: Path) -> None:
    page = (site / "explanation" / "architecture" / "index.html").read_text(encoding="utf-8")
    images = re.findall(r'<img alt="([^"]+)" src="[^"]*?/(\w+\.svg)"', page)
    assert [name for _, name in images] == DIAGRAMS
    assert [name for alt, name in images if len(alt) < 60] == []
    for name in DIAGRAMS:
        text = (ROOT / "docs" / "images" / name).read_text(encoding="utf-8")
        assert re.search(r'<title id="title">.{40,}</title>', text), name
        assert "prefers-color-scheme: dark" in text


def test_search_finds_flags_fields_and_messages(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    for words in ("--max-token-gap", "max_token_gap_ms", "queue is full", "cache_prompt", "weft:", "rate limit"):
        assert words in index, words


def test_llms_txt_lists_every_page_with_a_description(site: Path) -> None:
    lines = re.findall(r"^- \[(.+?)\]\((.+?)\): (.*)$", (site / "llms.txt").read_text(encoding="utf-8"), re.MULTILINE)
    pages = {str(path.parent.relative_to(site)) for path in site.rglob("index.html")}
    assert {address.strip("/") or "." for _, address, _ in lines} == pages
    assert [title for title, _, description in lines if len(description) < 20] == []
    assert [title for title, _, description in lines if re.search(r"\]\(|`|\*\*", description)] == [], "Markdown"


def test_pages_are_described_without_markdown(site: Path) -> None:
    for page in site.rglob("index.html"):
        [description] = re.findall(r'<meta name="description" content="(.*?)"', page.read_text(encoding="utf-8"))
        assert re.search(r"\]\(|`|\*\*", description) is None, page


def test_without_an_address_the_site_has_no_sitemap(site: Path) -> None:
    assert list(site.glob("sitemap.xml*")) == []


LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
REPOSITORY_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]


def test_links_to_files_of_the_repository_resolve() -> None:
    pages = [*REPOSITORY_PAGES, *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    missing = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in LINK.findall(re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL))
        if not re.match(r"[a-z]+:|[#/]", target) and not (page.parent / target.partition("#")[0]).exists()
    ]
    assert missing == []
