"""One self-contained HTML page: pictures, claims, settings and links to the data beside it."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from ._figures import inline

_TITLE = "Sketch-and-project natural gradients: the paper's experiments, reproduced"
_OTHER_TITLE = "Sketch-and-project natural gradients: trained models"


def page(studies: Sequence[Mapping[str, Any]], sections: Sequence[Mapping[str, Any]] = ()) -> str:
    """The page for studies as stored in their `study.json`, with `claims` and `svgs` added.

    `sections` are trained models: a title, pictures and a table. The page loads nothing: styles and pictures
    are in it. Links go to files beside it, in one folder a study or model.
    """
    title = _TITLE if studies else _OTHER_TITLE
    style = files("snapgrad.report").joinpath("page.css").read_text(encoding="utf-8")
    claims = [claim for study in studies for claim in study["claims"] if claim["judged"]]
    failed = [claim for claim in claims if not claim["passed"]]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<link rel="icon" href="data:,">',  # without it browsers ask for /favicon.ico
            f"<title>{title}</title>",
            f"<style>\n{style}</style>",
            "</head>",
            "<body>",
            "<header>",
            f"<h1>{title}</h1>",
            f"<p>{_summary(studies, len(claims), len(failed))}</p>" if studies else "",
            _contents(studies, sections),
            "</header>",
            "<main>",
            *(_study(study) for study in studies),
            *(_model(section) for section in sections),
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _summary(studies: Sequence[Mapping[str, Any]], judged: int, failed: int) -> str:
    if not judged:
        verdict = "This is a quick run at small sizes: claims are measured but not judged."
    elif failed:
        verdict = f'<strong class="fails">{failed} of {judged} claims fail.</strong>'
    else:
        verdict = f'<strong class="holds">All {judged} claims hold.</strong>'
    seeds = ", ".join(sorted({str(study["seed"]) for study in studies}))
    seconds = sum(study["seconds"] for study in studies)
    versions = ", ".join(f"{name} {value}" for name, value in studies[-1]["versions"].items())
    return (
        f"{verdict} Seed {seeds}; {_duration(seconds)} of computing in all; {escape(versions)}. "
        f"Each claim is a statement turned into one number with a threshold fixed beforehand."
    )


def _contents(studies: Sequence[Mapping[str, Any]], sections: Sequence[Mapping[str, Any]]) -> str:
    items = []
    for study in (*studies, *sections):
        judged = [claim for claim in study.get("claims", ()) if claim["judged"]]
        passed = sum(claim["passed"] for claim in judged)
        count = f" <span>{passed}/{len(judged)}</span>" if judged else ""
        link = f'<a href="#{escape(study["name"])}">{escape(study["title"])}</a>'
        items.append(f"<li>{link}{count}</li>")
    return f'<nav aria-label="Figures"><ol>{"".join(items)}</ol></nav>'


def _study(study: Mapping[str, Any]) -> str:
    notes = "".join(f"<p>{escape(note)}</p>" for note in study["notes"])
    aside = f'<aside aria-label="Notes">{notes}</aside>' if notes else ""
    return _section(study, _claims(study["claims"]), aside, _details(study))


def _model(section: Mapping[str, Any]) -> str:
    columns = list(section["table"][0]) if section["table"] else []
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(row[column])}</td>' for column in columns)}</tr>"
        for row in section["table"]
    )
    links = " · ".join(
        f'<a href="{escape(href)}" download>{escape(text)}</a>' for text, href in section["links"].items()
    )
    return _section(
        section,
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>',
        f'<p class="links">Download: {links}</p>',
    )


def _section(entry: Mapping[str, Any], *below: str) -> str:
    name, title = escape(entry["name"]), escape(entry["title"])
    plots = "\n".join(
        f'<div class="plot">{inline(svg, f"{title}, plot {i + 1}", f"{name}-{i}")}</div>'
        for i, svg in enumerate(entry["svgs"])
    )
    return "\n".join(
        [
            f'<section id="{name}">',
            f'<h2>{title} <small class="source">{escape(entry["source"])}</small></h2>',
            f'<figure><div class="plots">\n{plots}\n</div>',
            f"<figcaption>{escape(entry['caption'])}</figcaption></figure>",
            *below,
            "</section>",
        ]
    )


def _claims(claims: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for claim in claims:
        word = ("holds" if claim["passed"] else "fails") if claim["judged"] else "not judged"
        kind = word if claim["judged"] else "unjudged"
        detail = f' <span class="detail">({escape(claim["detail"])})</span>' if claim["detail"] else ""
        rows.append(
            f'<tr class="claim {kind}"><td>{escape(claim["statement"])}{detail}</td>'
            f'<td class="number">{_number(claim["value"])}</td>'
            f'<td class="number">{escape(claim["wanted"])}</td><td class="verdict">{word}</td></tr>'
        )
    head = "<tr><th>claim</th><th>measured</th><th>wanted</th><th>verdict</th></tr>"
    return f'<table class="claims"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>'


def _details(study: Mapping[str, Any]) -> str:
    name = escape(study["name"])
    data = " · ".join(f'<a href="{name}/data/{p}.npz" download>{p}</a>' for p in map(escape, study["panels"]))
    settings = "".join(
        f"<dt>{escape(key)}</dt><dd>{escape(json.dumps(value, ensure_ascii=False))}</dd>"
        for key, value in study["settings"].items()
    )
    return (
        f'<p class="links">Download: <a href="{name}/{name}.csv" download>table (CSV)</a> · '
        f'<a href="{name}/{name}.svg" download>picture (SVG)</a> · '
        f'<a href="{name}/claims.json" download>claims (JSON)</a></p>'
        f"<details><summary>Settings, timing, raw data</summary><dl>{settings}"
        f"<dt>computing time</dt><dd>{_duration(study['seconds'])} "
        f"({_duration(study['cpu_seconds'])} of processor time)</dd>"
        f"<dt>hash of all settings</dt><dd><code>{escape(study['hash'][:16])}</code></dd>"
        f"<dt>arrays (NPZ)</dt><dd>{data}</dd></dl></details>"
    )


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else escape(str(value))


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
