"""Tables of the page: the head with the score, all scores, result files, configuration, versions and hashes."""

import ast
import dataclasses
import inspect
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from bertjax import config as config_module
from bertjax.config import RunConfig
from bertjax.report.page_figures import cell
from bertjax.report.page_html import Html, code, details, el, join, table

STARTS = {"pretrained": "pre-trained weights", "random": "from scratch (fresh weights)"}
# Shown in a place of their own; whatever else run.json holds is listed as it is.
SHOWN = ("status", "task", "head", "headline", "labels", "rows", "steps", "best_step", "results", "versions")
SHOWN += ("devices", "processes", "data", "parameters", "architecture", "fresh")


def head(config: Mapping[str, Any], info: Mapping[str, Any], scores: Mapping[str, Any], majority: float) -> Html:
    """What the run is, and its dev score beside the majority baseline."""
    model, rows = _part(config, "model"), _part(info, "rows")
    labels = [str(label) for label in info.get("labels") or ()]
    facts = {
        "task": f"{info.get('task', 'unknown')}" + (f", {len(labels)} labels: {', '.join(labels)}" if labels else ""),
        "model": model.get("path", "unknown"),
        "start": STARTS.get(str(model.get("init")), model.get("init", "unknown")),
        "rows": ", ".join(f"{name} {_count(number)}" for name, number in rows.items()) or "unknown",
        "training": f"{_count(info.get('steps', 'unknown'))} steps, status {info.get('status', 'unknown')}",
    }
    if info.get("best_step") is not None:
        facts["best checkpoint"] = f"step {info['best_step']}"
    return el("div", _score(info, scores, majority), el("dl", *_pairs(facts)), class_="head")


def scores_table(scores: Mapping[str, Any], majority: float, rows: Any) -> Html:
    """Every dev score at the end of training, with the baseline of the accuracy."""
    lines = [
        [name, _number(value), f"{majority:.6g}" if name == "accuracy" and math.isfinite(majority) else "–"]
        for name, value in scores.items()
    ]
    columns = ["metric", "value", "majority baseline"]
    return table(f"Scores on the {_count(rows)} dev rows", columns, lines, numbers=(1, 2))


def timing_table(timing: Sequence[Mapping[str, Any]]) -> Html | None:
    """Speed of the training, from timing.jsonl."""
    speeds = [r["examples_per_second"] for r in timing if isinstance(r.get("examples_per_second"), (int, float))]
    compiled = [r["compile_seconds"] for r in timing if isinstance(r.get("compile_seconds"), (int, float))]
    if not speeds:
        return None
    low, middle, high = np.quantile(speeds, [0, 0.5, 1])
    lines = [["examples per second, median", f"{middle:.4g}"], ["lowest and highest", f"{low:.4g} to {high:.4g}"]]
    if compiled:
        lines.append(["first step with compilation, seconds", f"{compiled[-1]:.4g}"])
    return table("Speed of the training", ["measure", "value"], lines, numbers=(1,))


def results_table(results: Mapping[Path, xr.Dataset | str], run: Path) -> Html:
    """Every result file with its size; a file that cannot be read with the reason."""
    lines = []
    for path, dataset in results.items():
        name = code(path.relative_to(run).as_posix())
        if isinstance(dataset, str):
            lines.append([name, "–", "–", "–", dataset])
            continue
        dims = [str(dim) for dim in dataset["status"].dims] if "status" in dataset else []
        sizes = " × ".join(str(dataset.sizes[dim]) for dim in dims) or "–"
        words = f"{sizes} ({' × '.join(dims)})" if dims else "–"
        seconds = dataset.attrs.get("seconds")
        lines.append(
            [
                name,
                dataset.attrs.get("kind", "unknown"),
                words,
                dataset.attrs.get("examples", "unknown"),
                "–" if seconds is None else f"{float(seconds):.4g}",
            ]
        )
    return table("Result files", ["file", "kind", "points", "examples at each point", "seconds"], lines, prose=True)


def result_details(results: Mapping[Path, xr.Dataset | str]) -> list[Html]:
    """All attributes of each result, folded."""
    return [
        details(
            f"Attributes of {path.name}",
            table(f"Attributes of {path.name}", ["name", "value"], _attributes(ds), prose=True),
        )
        for path, ds in results.items()
        if isinstance(ds, xr.Dataset)
    ]


def configuration(config: Mapping[str, Any]) -> Html:
    """Fields that differ from the defaults, with their meaning; the whole configuration folded."""
    flat, defaults, meaning = _flat(config), _flat(dataclasses.asdict(RunConfig())), field_meanings()
    changed = [
        [code(name), _json(value), _json(defaults[name]) if name in defaults else "none", meaning.get(name, "")]
        for name, value in flat.items()
        if name not in defaults or _json(defaults[name]) != _json(value)
    ]
    whole = [[code(name), _json(value), meaning.get(name, "")] for name, value in flat.items()]
    first = (
        table(
            "Options that differ from the defaults", ["option", "this run", "default", "meaning"], changed, prose=True
        )
        if changed
        else el("p", "Every option has its default value.")
    )
    return join(
        [
            first,
            details(
                "The whole configuration", table("Every option", ["option", "value", "meaning"], whole, prose=True)
            ),
        ]
    )


def versions(info: Mapping[str, Any]) -> Html:
    """Versions of the software, devices, hashes of data and parameters."""
    packages = [[name, value] for name, value in _part(info, "versions").items()]
    hashes = [[f"parameters at the {name}", code(value)] for name, value in _part(info, "parameters").items()]
    hashes += [[f"data: {name}", code(value)] for name, value in _part(info, "data").items()]
    devices = [["devices", ", ".join(map(str, info.get("devices") or ())) or "unknown"]]
    devices += [["processes", info.get("processes", "unknown")]]
    other = _rows({name: value for name, value in info.items() if name not in SHOWN})
    architecture = _rows(_part(info, "architecture"))
    fresh = [str(name) for name in info.get("fresh") or ()]
    return join(
        [
            el(
                "div",
                table("Versions", ["package", "version"], packages),
                table("Machine", ["what", "value"], devices),
                class_="beside",
            ),
            table("SHA-256 of parameters and data", ["what", "hash"], hashes, prose=True),
            details(
                "Architecture",
                table("Architecture", ["field", "value"], architecture),
                el("p", f"Parameters with fresh values: {', '.join(fresh)}") if fresh else None,
            ),
            details(
                "Also stored in run.json",
                table("Further fields of run.json", ["field", "value"], other),
            )
            if other
            else None,
        ]
    )


def missing_result(kind: str, run: Path) -> Html:
    """Which command makes a result that the run does not have."""
    command = f"python landscape.py {kind} {shlex.quote(str(run))}"
    return el("p", f"No {kind} is stored. This command makes it: ", code(command), class_="missing")


def field_meanings() -> dict[str, str]:
    """The text below each field of the configuration's dataclasses: "section.field" -> meaning."""
    classes: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(config_module)).body:
        if isinstance(node, ast.ClassDef):
            fields = classes.setdefault(node.name, {})
            for field, below in zip(node.body, node.body[1:], strict=False):
                text = getattr(below, "value", None) if isinstance(below, ast.Expr) else None
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Constant):
                    fields[field.target.id] = " ".join(str(text.value).split())
    found = {}
    for field in dataclasses.fields(RunConfig):
        inner = type(field.default).__name__
        for name, text in classes.get(inner, {}).items():
            found[f"{field.name}.{name}"] = text
        if field.name in classes["RunConfig"]:
            found[field.name] = classes["RunConfig"][field.name]
    return found


def _score(info: Mapping[str, Any], scores: Mapping[str, Any], majority: float) -> Html:
    headline = str(info.get("headline", "score"))
    value = scores.get(headline)
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return el("div", el("p", f"No dev {headline} is recorded yet."), class_="score")
    parts: list[Html] = [el("p", el("strong", f"{value:.3f}"), f" dev {headline}")]
    if headline == "accuracy" and math.isfinite(majority):
        for name, share in (("this model", value), ("majority baseline", majority)):
            width = f"width:{100 * min(max(share, 0.0), 1.0):.2f}%"
            bar = el("div", el("i", style=width), class_="bar" if name == "this model" else "bar base")
            parts.append(el("div", el("span", f"{name} {share:.3f}"), bar, class_="gauge"))
        parts.append(el("p", f"{100 * (value - majority):+.1f} percentage points against the majority baseline"))
    elif headline == "accuracy":
        parts.append(el("p", "The majority baseline is stored with the first curve, surface or rollback."))
    return el("div", *parts, class_="score")


def _pairs(facts: Mapping[str, Any]) -> list[Html]:
    return [part for name, text in facts.items() for part in (el("dt", name), el("dd", text))]


def _attributes(ds: xr.Dataset) -> list[list[Any]]:
    attrs = dict(ds.attrs)
    try:
        options = json.loads(attrs.pop("identity", "{}"))
    except (TypeError, ValueError):
        options = {}
    options = options if isinstance(options, dict) else {}
    rows = [[name, cell(float(v)) if isinstance(v, float) else v] for name, v in attrs.items()]
    return rows + [[f"option {name}", _json(value)] for name, value in options.items()]


def _part(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name)
    return found if isinstance(found, dict) else {}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _rows(values: Mapping[str, Any]) -> list[list[str]]:
    return [[name, _json(value)] for name, value in _flat(values).items()]


def _json(value: Any) -> str:
    if isinstance(value, str):
        return value if value else "(empty)"
    if value is None:
        return "(unset)"
    if isinstance(value, (list, tuple)):
        return ", ".join(_json(item) for item in value) or "(none)"
    return json.dumps(value, ensure_ascii=False, default=str)


def _number(value: Any) -> str:
    return cell(float(value)) if isinstance(value, (int, float)) else "not finite"


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
