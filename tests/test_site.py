"""The documentation as a site: it builds without a warning, misses nothing public, and fits on a phone."""

import inspect
import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from browser import CHROMIUM, NEEDS_BROWSER, look
from documented import methods_of, public
from test_examples import PUBLIC

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path.relative_to(site): path.read_text() for path in site.rglob("*.html")}


@pytest.fixture(scope="module")
def reference(pages):
    return "".join(html for name, html in pages.items() if name.parts[0] == "reference")


def test_the_site_fetches_nothing_from_elsewhere(pages):
    assert len(pages) > 30
    for name, html in pages.items():
        assert not re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="https?:', html), name


def anchors_of(names):
    """Where the reference shows these classes and functions, and the methods of the classes."""
    for name, value in names.items():
        at = f"snapgrad.{name.removeprefix('sg.')}"
        yield at
        yield from (f"{at}.{method}" for method in methods_of(value)) if inspect.isclass(value) else ()


def test_the_reference_shows_every_public_name_and_method(reference):
    missing = [anchor for anchor in anchors_of(PUBLIC) if f'id="{anchor}"' not in reference]
    assert not missing, f"not in docs/reference/: {', '.join(missing)}"


def test_the_reference_shows_every_public_name_and_method_for_netket(reference):
    names = dict(public({"netket": pytest.importorskip("snapgrad.netket", exc_type=ImportError)}))
    missing = [anchor for anchor in anchors_of(names) if f'id="{anchor}"' not in reference]
    assert not missing, f"not in docs/reference/: {', '.join(missing)}"


def test_signatures_and_formulas_are_shown_as_they_are_meant(pages, reference):
    plain = unescape(re.sub(r"<[^>]+>", "", reference))
    assert "Uniform(num_rows: int, sample_size: int, replace: bool = False)" in plain  # fields are arguments
    assert 'J: Float[ArrayLike, "m n"]' in plain
    assert "Given[" not in plain  # what may be given is shown as what it is
    assert "‖θ₀ − θ*‖²" in plain  # and stars are no emphasis
    assert 'href="../reference/methods.html#snapgrad.Auto"' in pages[Path("start/model.html")]


PROBE = """<!doctype html><body><script>
const found = {};
for (const page of PAGES) for (const width of [390, 1280]) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 900px; border: 0`;
  frame.src = page;
  frame.onload = () => {
    const root = frame.contentDocument.documentElement;
    found[`${page} at ${width}`] = {
      over: root.scrollWidth - root.clientWidth,
      seen: root.querySelectorAll(".md-content h1, .md-content p").length,
    };
  };
  document.body.append(frame);
}
addEventListener("load", () => {
  const out = document.createElement("pre");
  out.id = "probe";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
});
</script></body>"""
"""Opens pages in frames of the width of a phone and of a small screen, and says how far they stick out."""


def probe(site: Path, pages: list[str]) -> dict:
    file = site / "probe.html"
    file.write_text(PROBE.replace("PAGES", json.dumps(pages)))
    html = look(file, 1400, "--allow-file-access-from-files", "--disable-web-security")
    return json.loads(unescape(html.split('<pre id="probe">')[1].split("</pre>")[0]))


@pytest.mark.skipif(CHROMIUM is None, reason=NEEDS_BROWSER)
def test_pages_fit_on_a_phone_and_on_a_screen(site):
    """Nothing sticks out sideways, and the browser's console is silent."""
    pages = ["index", "faq", "results/index", "reference/pinn", "tutorials/fit_a_model", "start/model"]
    found = probe(site, [f"{page}.html" for page in pages])
    assert len(found) == 2 * len(pages)
    for place, seen in found.items():
        assert seen["seen"] > 1 and seen["over"] == 0, f"{place}: {seen}"
