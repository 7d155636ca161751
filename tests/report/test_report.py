"""The page: self-contained and complete."""

import json
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from browser import CHROMIUM, NEEDS_BROWSER, look
from snapgrad import report


def plot(ax):
    ax.plot([1, 2, 3], [1.0, 4.0, 2.0], color=report.BLUE, label="a < b & c")
    ax.set(xlabel="λ", ylabel="error")
    ax.legend()


def study(name="one", passed=True, judged=True):
    claim = {"statement": "α < β & more", "value": 1.25, "wanted": "≤ 2", "detail": "", "judged": judged}
    return {
        "name": name,
        "title": f"A <title> of {name}",
        "source": "Figure 1",
        "caption": 'What "it" shows & why.',
        "notes": ["A note."],
        "size": "full" if judged else "quick",
        "seed": 0,
        "seconds": 300.0,
        "cpu_seconds": 12.0,
        "versions": {"snapgrad": "0.1.0"},
        "settings": {"steps": 10, "grid": [1.0, 2.0]},
        "hash": "0123456789abcdef0123",
        "panels": ["p"],
        "plots": 2,
        "claims": [{**claim, "passed": passed}, {**claim, "statement": "second", "passed": True}],
        "svgs": [report.render([plot], f"{name}-0"), report.render([plot], f"{name}-1")],
    }


def model(name="pinn-x"):
    return {
        "name": name,
        "title": "PINN: x",
        "source": "PINN",
        "caption": "Error & time.",
        "table": [{"method": "auto", "error": "1e-6"}, {"method": "a < b", "error": "1e-3"}],
        "svgs": [report.render([plot], name)],
        "links": {"curves (SVG)": "pinn/x/error.svg"},
    }


class Seen(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.tags, self.ids, self.links, self.void = [], [], [], {"meta", "link", "br"}
        self.stack = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.links += [value for key, value in attrs.items() if key in ("href", "src") and tag != "use"]
        if tag not in self.void:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.void:
            self.stack.pop()

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


def test_a_picture_is_valid_and_deterministic():
    svg = report.render([plot, plot], "x")
    assert svg == report.render([plot, plot], "x")
    ElementTree.fromstring(svg)
    ElementTree.fromstring(report.standalone(svg))
    inline = report.inline(svg, "label", "x")
    ElementTree.fromstring(inline.replace("xlink:href", "href"))
    assert "currentColor" in inline and "var(--blue)" in inline and report.BLUE not in inline
    assert 'aria-label="label"' in inline


def test_the_page_holds_everything_and_loads_nothing():
    html = report.page([study("one"), study("two", passed=False)])
    seen = Seen(html)
    assert seen.stack == [] and seen.tags.count("svg") == 4 and seen.tags.count("section") == 2
    assert len(seen.ids) == len(set(seen.ids))  # pictures side by side share no identifiers
    outside = [link for link in seen.links if link.startswith(("http:", "https:", "//"))]
    assert outside == [] and "one/one.csv" in seen.links and "two/data/p.npz" in seen.links
    assert html.count('class="claim ') == 4 and "1 of 4 claims fail" in html
    assert "A &lt;title&gt; of one" in html and "α &lt; β &amp; more" in html
    assert "<script" not in html and "@import" not in html


def test_trained_models_have_sections_of_their_own():
    seen = Seen(html := report.page([study("one")], [model()]))
    assert seen.stack == [] and seen.tags.count("section") == 2 and "pinn/x/error.svg" in seen.links
    assert "<td>a &lt; b</td>" in html and "All 2 claims hold" in html and "reproduced</h1>" in html
    alone = report.page([], [model()])
    assert "trained models</h1>" in alone and "claims" not in alone.split("<body>")[1]


def test_the_page_says_when_nothing_is_judged():
    html = report.page([study(judged=False)])
    assert "not judged" in html and "claims hold" not in html


@pytest.mark.skipif(CHROMIUM is None, reason=NEEDS_BROWSER)
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_the_page(tmp_path, width):
    """No console errors, every picture has its size, every claim is there, nothing sticks out sideways."""
    html = report.page([study("one"), study("two")], [model()])
    probe = """<script>
    window.addEventListener("load", () => {
      const svgs = [...document.querySelectorAll("svg[role=img]")];
      const claims = [...document.querySelectorAll(".claim")];
      const out = document.createElement("pre"); out.id = "probe";
      out.textContent = JSON.stringify({
        drawn: svgs.filter(s => s.getBoundingClientRect().width > 250 && s.getBBox().height > 100).length,
        claims: claims.filter(c => c.getBoundingClientRect().height > 10).length,
        overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
      });
      document.body.append(out);
    });
    </script>"""
    path = tmp_path / "report.html"
    path.write_text(html.replace("</body>", probe + "</body>"), encoding="utf-8")
    text = look(path, width).split('<pre id="probe">')[1].split("</pre>")[0]
    assert json.loads(text) == {"drawn": 5, "claims": 4, "overflow": 0}
