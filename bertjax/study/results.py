"""The end of a study: study.csv, summary.csv, seconds.csv, the printed table, and the figure.

study.csv and summary.csv hold only what the runs determine, so that a study that was interrupted and continued has the
same bytes as one that went through; seconds are in a file of their own.
"""

import csv
import io
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

from bertjax import paths
from bertjax.model.heads import HEADS
from bertjax.progress import say
from bertjax.report.study import Group, study_figure
from bertjax.report.style import save
from bertjax.study.options import Member, StudyConfig, axes
from bertjax.study.outcomes import Outcome, outcome, records, seconds

FEW = 5  # runs below which a spread says nothing
RESAMPLES = 9999
CONFIDENCE = 0.95


def write_results(config: StudyConfig, runs: Sequence[Member]) -> list[Path]:
    """Writes tables and figure of a study whose runs have all ended, and prints the table; returns the files."""
    ended = {run: found for run in runs if (found := outcome(run)) is not None}
    options = [axis.option for axis in axes(config.study)]
    headline = next((found.info["headline"] for found in ended.values() if found.info), "score")
    rows = study_rows(options, ended)
    summary = summary_rows(options, ended)
    folder = config.folder
    tables = {
        "study.csv": rows,
        "summary.csv": summary,
        "seconds.csv": [_keys(options, run) | {"seconds": round(seconds(run), 3)} for run in ended],
    }
    for name, table in tables.items():
        paths.write_text(folder / name, _csv(table))
    figure = draw(config, headline, ended)
    say("", *printed(headline, ended, summary))
    say("", f"results in {folder}: {', '.join(tables)}, figures/study.png and .svg")
    return [*(folder / name for name in tables), *figure]


def draw(config: StudyConfig, headline: str, ended: Mapping[Member, Outcome]) -> list[Path]:
    """Draws figures/study.png and .svg of a study whose runs have all ended."""
    groups: dict[str, dict[Member, Outcome]] = {}
    for run, found in ended.items():
        groups.setdefault(run.label, {})[run] = found
    info = next((found.info for found in ended.values() if found.info), {})
    varied = ", ".join(axis.option for axis in axes(config.study)) or "seeds alone"
    figure = study_figure(
        {
            label: Group(
                {run.seed: records(run) for run in group},
                {run.seed: found.score for run, found in group.items()},
                frozenset(run.seed for run, found in group.items() if found.failed),
            )
            for label, group in groups.items()
        },
        title=f"Study {config.name}: {varied}",
        headline=headline,
        loss_name=HEADS[info.get("head", "classification")].loss_name,
        majority=info.get("majority", math.nan),
        caption=f"{len(ended)} runs; "
        + (f"training rows: {info['rows']['train']:,}, dev rows: {info['rows']['dev']:,}. " if info else "")
        + "n of m runs: those with a score. Failed: diverged, or no better than the majority class "
        "(regression: Spearman below 0.1).",
    )
    return save(figure, config.folder / "figures" / "study")


def study_rows(options: Sequence[str], ended: Mapping[Member, Outcome]) -> list[dict[str, Any]]:
    """One row a run: axis values, seed, status, whether it failed, steps, dev metrics and loss."""
    names = list(dict.fromkeys(name for found in ended.values() for name in found.scores))
    return [
        _keys(options, run)
        | {
            "status": found.status,
            "failed": int(found.failed),
            "reason": found.reason,
            "steps": found.info.get("steps", ""),
            "best_step": found.info.get("best_step", ""),
        }
        | {f"dev/{name}": found.scores.get(name, "") for name in names}
        | {"majority": found.info.get("majority", "")}
        for run, found in ended.items()
    ]


def summary_rows(options: Sequence[str], ended: Mapping[Member, Outcome]) -> list[dict[str, Any]]:
    """One row a combination: the headline metric over its seeds, and its difference to the first combination.

    Only runs with a score count in the statistics; runs that are no better than the baseline do. Differences are
    paired by seed; `low` and `high` bound the mean difference with 95 % confidence (bootstrap over the pairs).
    """
    groups: dict[tuple[str, ...], dict[Member, Outcome]] = {}
    for run, found in ended.items():
        groups.setdefault(run.combination, {})[run] = found
    scores = {
        combination: {run.seed: found.score for run, found in group.items() if math.isfinite(found.score)}
        for combination, group in groups.items()
    }
    first = next(iter(scores.values()))
    rows = []
    for combination, group in groups.items():
        values = np.array(list(scores[combination].values()), np.float64)
        pairs = np.array([score - first[seed] for seed, score in scores[combination].items() if seed in first])
        low, high = interval(pairs)
        few = min(len(values), len(pairs))
        rows.append(
            dict(zip(options, combination, strict=True))
            | {
                "runs": len(group),
                "n": len(values),
                "failed": sum(found.failed for found in group.values()),
                "errors": sum(found.status == "error" for found in group.values()),
            }
            | describe(values)
            | {
                "pairs": len(pairs),
                "difference": float(pairs.mean()) if len(pairs) else math.nan,
                "low": low,
                "high": high,
                "warning": f"n < {FEW}: too few runs to tell a difference from chance" if few < FEW else "",
            }
        )
    return rows


def describe(values: np.ndarray) -> dict[str, float]:
    """Mean, sample standard deviation (ddof = 1), minimum, maximum and median; nan where there is none."""
    n = len(values)
    return {
        "mean": float(values.mean()) if n else math.nan,
        "std": float(values.std(ddof=1)) if n > 1 else math.nan,
        "min": float(values.min()) if n else math.nan,
        "max": float(values.max()) if n else math.nan,
        "median": float(np.median(values)) if n else math.nan,
    }


def interval(differences: np.ndarray) -> tuple[float, float]:
    """Bounds of the mean with 95 % confidence by the bootstrap (BCa, Efron 1987), always the same resamples.

    Equal differences give the value itself on both sides, fewer than two nan.
    """
    if len(differences) < 2:
        return math.nan, math.nan
    if (differences == differences[0]).all():
        return float(differences[0]), float(differences[0])
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            # Few values may have no acceleration; the percentile interval stands in for it.
            warnings.simplefilter("ignore", scipy.stats.DegenerateDataWarning)
            found = scipy.stats.bootstrap(
                (differences,),
                np.mean,
                n_resamples=RESAMPLES,
                confidence_level=CONFIDENCE,
                method=method,
                random_state=np.random.default_rng(0),
            ).confidence_interval
        if math.isfinite(found.low) and math.isfinite(found.high):
            break
    return float(found.low), float(found.high)


def printed(headline: str, ended: Mapping[Member, Outcome], summary: Sequence[Mapping[str, Any]]) -> list[str]:
    """The summary as lines of text."""
    labels = list(dict.fromkeys(run.label for run in ended))
    shown = ("mean", "std", "min", "max", "median", "difference")
    table = [["", "n", "failed", *shown, "95 % interval"]]
    for number, (label, row) in enumerate(zip(labels, summary, strict=True)):
        cells = [label, f"{row['n']} of {row['runs']}", str(row["failed"])]
        cells += [_four(row[name]) if number or name != "difference" else "" for name in shown]
        table.append([*cells, f"{_four(row['low'])} to {_four(row['high'])}" if number else ""])
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = [f"dev {headline} of {len(ended)} runs; difference to the first line by seed, with bootstrap interval"]
    lines += ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in table]
    lines.append("failed: diverged, or no better than the majority class (regression: Spearman below 0.1)")
    few = [label for label, row in zip(labels, summary, strict=True) if row["warning"]]
    if few:
        lines.append(f"warning n < {FEW}: too few runs to tell a difference from chance ({'; '.join(few)})")
    errors = [run.config.folder for run, found in ended.items() if found.status == "error"]
    if errors:
        lines.append(f"warning {len(errors)} run(s) not trained, such as {errors[0]}; the same command tries again")
    return lines


def _keys(options: Sequence[str], run: Member) -> dict[str, Any]:
    return dict(zip(options, run.combination, strict=True)) | {"seed": run.seed}


def _four(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
