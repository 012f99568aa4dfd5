"""Try the built site in a browser, as a reader does: ``python scripts/check_site.py docs/_build/html``.

Every page has to fit 1280 and 390 pixels without a console error, and no table may scroll sideways. The search has to
find "cuda graph", a copied block has to be the code alone, and tabs, light and dark have to work. Figures have to
follow the site's switch. Without Playwright or Chromium the script says that nothing was tried; neither is a
requirement of ``make site``.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WIDTHS = (1280, 390)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

WIDE = """() => {
  const root = document.documentElement, wide = [];
  if (root.scrollWidth > root.clientWidth + 1) wide.push("the page");
  for (const one of document.querySelectorAll("article table, article img, article p, article li, article h1")) {
    for (const box of [one, one.parentElement]) {
      if (box.scrollWidth > box.clientWidth + 1) wide.push((one.innerText || one.src).slice(0, 50));
    }
  }
  return wide;
}"""
"""What is wider than its column; blocks of code may scroll."""


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder, and logs nothing."""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Does not report a page that the browser left before it was sent."""

    def handle_error(self, *_: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Address of the folder on this machine."""
    server = Server(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()


def fit(page: Any, base: str, names: list[str]) -> Iterator[str]:
    """Pages with something wider than its column."""
    for name in names:
        page.goto(f"{base}/{name}", wait_until="load")
        yield from (f"{name} at {page.viewport_size['width']} px: too wide: {text!r}" for text in page.evaluate(WIDE))


def read(page: Any, base: str) -> Iterator[str]:
    """What a reader of the quickstart does, and does not get."""
    page.goto(f"{base}/guide/quickstart.html", wait_until="load")
    page.get_by_text("PyTorch", exact=True).first.click()
    if not page.get_by_text("torch.randn").first.is_visible():
        yield "the tab of PyTorch shows no code"
    block = page.locator("div.highlight-pycon").first
    block.hover()
    block.locator("button.copybtn").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    if not copied.startswith("import numpy as np\nimport ksieve\n") or ">>>" in copied:
        yield f"a copied block is {copied[:60]!r}"
    page.keyboard.press("Control+k")
    page.keyboard.type("cuda graph")
    page.keyboard.press("Enter")
    try:
        page.locator("#search-results a[href*='guide/serving.html']").first.wait_for(timeout=10_000)
    except Exception as error:  # of Playwright, whose classes are not imported here
        yield f"the search for 'cuda graph' does not find the page on serving: {error}"


def switched(page: Any, base: str) -> Iterator[str]:
    """Whether a figure follows the site's switch, whatever the system's scheme is."""
    page.goto(f"{base}/index.html", wait_until="load")
    figure, looks = page.locator("article img").first, []
    figure.evaluate("image => image.scrollIntoView({block: 'center'})")
    box = figure.bounding_box()
    inside = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "width": 40, "height": 40}
    for mode in ("light", "dark"):
        page.evaluate(f"document.querySelector('.theme-change-button[data-mode={mode}]').click()")
        looks.append(page.screenshot(clip=inside))
    if looks[0] == looks[1]:
        yield "a figure does not follow the switch between light and dark"


def faults(browser: Any, base: str, names: list[str]) -> Iterator[str]:
    """Everything that is wrong with the site."""
    colours = set()
    for scheme in ("light", "dark"):
        for width in WIDTHS:
            view = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
            context = browser.new_context(**view, permissions=["clipboard-read", "clipboard-write"])
            page, said = context.new_page(), []
            page.on("console", lambda message, said=said: said.append(message.text) if message.type == "error" else 0)
            page.on("response", lambda got, said=said: said.append(got.url) if got.status > 399 else 0)
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            yield from fit(page, base, names if scheme == "light" else ["index.html", "reference/benchmarks.html"])
            if width == WIDTHS[0]:
                yield from read(page, base)
                colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
                yield from switched(page, base)
            yield from (f"console at {width} px, {scheme}: {text}" for text in dict.fromkeys(said))
            context.close()
    if len(colours) < 2:
        yield "light and dark look the same"


def main(folder: Path) -> int:
    """Try the site; 1 if anything is wrong."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    if sync_playwright is None or program is None:
        lacks = "Playwright (pip install playwright)" if sync_playwright is None else "Chromium"
        print(f"the site was NOT tried in a browser: {lacks} is not installed", file=sys.stderr)
        return 0
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
    names = [name for name in names if not name.startswith("_static/")]  # templates of the theme
    if "index.html" not in names:
        print(f"{folder} holds no site", file=sys.stderr)
        return 1
    with served(folder) as base, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        found = list(faults(browser, base, names))
        browser.close()
    print("\n".join(found) or f"{len(names)} pages tried in Chromium at {' and '.join(map(str, WIDTHS))} px")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
