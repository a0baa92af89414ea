"""One offline HTML page of all that a run holds: RUN/report.html.

It reads stored results only: no model is built and nothing is computed on a device. plotly's script, the style and the
data are inside the file; the page's own policy forbids it to load anything and to run any script but these.
"""

import base64
import hashlib
import importlib.resources
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import xarray as xr

from bertjax.errors import InputError
from bertjax.landscape.store import read_netcdf
from bertjax.paths import replacing
from bertjax.report import page_tables as tables
from bertjax.report import style
from bertjax.report.page_block import Block
from bertjax.report.page_definitions import definitions
from bertjax.report.page_figures import curve_block, learning_block
from bertjax.report.page_html import Html, el, join, script_json
from bertjax.report.page_rollback import rollback_block
from bertjax.report.page_surface import surface_block
from bertjax.report.page_trajectory import trajectory_block
from bertjax.training.records import read_jsonl

# Kind of a result -> heading of its section -> its figure. The order is that of the page.
KINDS: dict[str, tuple[str, Callable[[xr.Dataset, str], Block]]] = {
    "curve": ("Loss curve", curve_block),
    "surface": ("Loss surface", surface_block),
    "rollback": ("Layer rollback", rollback_block),
    "trajectory": ("Trajectory", trajectory_block),
}
# What the loss of a task is called where no result says it.
LOSS_NAMES = {"regression": "squared error"}

Results = dict[Path, xr.Dataset | str]


def write_page(run_folder: Path) -> Path:
    """Writes RUN/report.html, one page that needs no other file and no network.

    Arguments:
      run_folder: folder of a run, finished or not.
    Returns:
      The file that was written.
    Raises:
      InputError: the folder is no run, or its run.json or config.json is damaged.
    """
    run = Path(run_folder)
    target = run / "report.html"
    text = page(run)
    with replacing(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return target


def page(run: Path) -> str:
    """The page as text; see `write_page`."""
    if not (run / "run.json").is_file():
        raise InputError(f"{run} is not a run: it has no run.json (a run is made by: python train.py CONFIG)")
    info, config = _read_json(run / "run.json"), _read_json(run / "config.json")
    records, timing = (read_jsonl(run / name) for name in ("metrics.jsonl", "timing.jsonl"))
    results = read_results(run)
    scores, majority, loss_label = _scores(info, records), _majority(info, results), _loss_label(info, results)
    name = str(config.get("name") or run.resolve().name)
    headline = str(info.get("headline") or "score")

    blocks: list[Block] = []
    sections: list[tuple[str, str, Html]] = []

    def add(block: Block, named: bool = False) -> Html:
        blocks.append(block)
        return block.html(len(blocks), named)

    learning = (
        add(learning_block(records, headline, loss_label, majority))
        if records
        else el("p", "No metrics are recorded yet (metrics.jsonl).", class_="missing")
    )
    sections.append(("learning", "Learning curves", learning))
    for kind, (title, function) in KINDS.items():
        sections.append((kind, title, _figures(results, run, kind, title, function, add)))
    rows = info.get("rows", {}).get("dev", "") if isinstance(info.get("rows"), dict) else ""
    sections += [
        (
            "tables",
            "Tables",
            join(
                [
                    el(
                        "div",
                        tables.scores_table(scores, majority, rows) if scores else None,
                        tables.timing_table(timing),
                        class_="beside",
                    ),
                    tables.results_table(results, run) if results else el("p", "No result files.", class_="missing"),
                    *tables.result_details(results),
                ]
            ),
        ),
        ("configuration", "Configuration", tables.configuration(config)),
        ("versions", "Versions and hashes", tables.versions(info)),
        ("definitions", "Definitions and units", definitions(loss_label)),
    ]
    return _document(name, tables.head(config, info, scores, majority), sections, blocks)


def read_results(run: Path) -> Results:
    """Every stored result of a run by its file; a text says why a file cannot be shown."""
    found: Results = {}
    for path in sorted((run / "landscape").glob("*.nc")):
        try:
            found[path] = read_netcdf(path)
        except InputError as error:
            found[path] = str(error)
    for path in sorted((run / "landscape").glob("*.zarr")):
        found[path] = "not finished: the same command continues it"
    return found


def _figures(
    results: Results,
    run: Path,
    kind: str,
    title: str,
    function: Callable[[xr.Dataset, str], Block],
    add: Callable[[Block, bool], Html],
) -> Html:
    """All figures of one kind; the command that makes one where there is none."""
    chosen = {p: ds for p, ds in results.items() if isinstance(ds, xr.Dataset) and ds.attrs.get("kind") == kind}
    if not chosen:
        return tables.missing_result(kind, run)
    parts: list[Html] = []
    for path, ds in chosen.items():
        try:
            block = function(ds, f"{title}: {path.name}" if len(chosen) > 1 else title)
            parts.append(add(block, len(chosen) > 1))
        except InputError as error:
            parts.append(el("p", f"{path.name}: {error}", class_="missing"))
    return join(parts)


def _document(name: str, head: Html, sections: list[tuple[str, str, Html]], blocks: list[Block]) -> str:
    script = Html(_asset("page.js"))
    library = Html(plotly_script())
    data = script_json([block.data(number) for number, block in enumerate(blocks, 1)])
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'; "
        f"script-src {_hash(library)} {_hash(script)}"
    )
    body = el(
        "body",
        el("a", "Skip to the results", href="#learning", class_="skip"),
        el("header", el("p", "bertjax report of the run", class_="kicker"), el("h1", name), head),
        el("nav", *(el("a", title, href=f"#{key}") for key, title, _ in sections), aria_label="Sections"),
        el(
            "main",
            el("noscript", el("p", "The figures need JavaScript; every value is in the tables below them.")),
            *(el("section", el("h2", title), content, id=key) for key, title, content in sections),
        ),
        el("script", data, type="application/json", id="figures"),
        el("script", library) if blocks else None,
        el("script", script) if blocks else None,
    )
    top = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("link", rel="icon", href="data:,"),
        el("title", f"{name}: bertjax report"),
        el("style", Html(_asset("page.css"))),
    )
    return f"<!DOCTYPE html>\n{el('html', top, body, lang='en')}\n"


def plotly_script() -> str:
    """plotly's script as its Python package ships it, fit to stand inside a script element."""
    text = (importlib.resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _asset(name: str) -> str:
    return (importlib.resources.files("bertjax.report") / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} is damaged: expected an object, got {type(values).__name__}")
    return values


def _scores(info: Mapping[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    """The dev scores at the end; of a run in training the last that were recorded."""
    results = info.get("results")
    if isinstance(results, dict) and isinstance(results.get("dev"), dict):
        return results["dev"]
    found: dict[str, Any] = {}
    for record in records:
        found |= {key.removeprefix("dev/"): value for key, value in record.items() if key.startswith("dev/")}
    return found


def _majority(info: Mapping[str, Any], results: Results) -> float:
    if isinstance(info.get("majority"), float):
        return info["majority"]
    for ds in results.values():
        value = ds.attrs.get("majority") if isinstance(ds, xr.Dataset) else None
        if value is not None and math.isfinite(float(value)):
            return float(value)
    return math.nan


def _loss_label(info: Mapping[str, Any], results: Results) -> str:
    stored = [ds.attrs for ds in results.values() if isinstance(ds, xr.Dataset) and "loss_name" in ds.attrs]
    default = {"loss_name": LOSS_NAMES.get(str(info.get("head")), "cross entropy, nats")}
    return style.quantity_label(stored[0] if stored else default, "loss")
