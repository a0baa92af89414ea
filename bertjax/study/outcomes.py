"""What has become of a study's runs, read from their folders."""

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

from bertjax import paths
from bertjax.config import to_json
from bertjax.errors import DivergedError, InputError, first_line
from bertjax.study.options import Member
from bertjax.training.job import finished
from bertjax.training.records import read_jsonl

FAILED = "failed.json"

# Headline metric -> whether a score is no result at all: at or below the majority baseline, or hardly correlated.
WORTHLESS: dict[str, Callable[[float, dict[str, Any]], bool]] = {
    "accuracy": lambda score, info: score <= info.get("majority", -math.inf),
    "spearman": lambda score, info: not score >= 0.1,
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    status: str
    """done; diverged: its loss was no longer a finite number; error: it could not be trained, and is tried again."""
    reason: str = ""
    info: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Contents of run.json, of a run that is done."""

    @property
    def final(self) -> bool:
        """Whether there is nothing left to do."""
        return self.status in ("done", "diverged")

    @property
    def scores(self) -> dict[str, float]:
        """Dev loss and metrics; empty if the run is not done."""
        return self.info["results"]["dev"] if self.info else {}

    @property
    def score(self) -> float:
        """The headline metric; nan if there is none."""
        return self.scores.get(self.info.get("headline", ""), math.nan)

    @property
    def failed(self) -> bool:
        """Whether the run diverged or learned nothing: the score is no better than without training."""
        if self.status != "done":
            return self.status == "diverged"
        worthless = WORTHLESS.get(self.info["headline"], lambda score, info: math.isnan(score))
        return worthless(self.score, self.info)


def outcome(member: Member) -> Outcome | None:
    """How a run ended; None if it has not.

    Raises:
      InputError: its folder belongs to another config.
    """
    folder = member.config.folder
    run = finished(folder, member.config)
    if run is not None:
        return Outcome("done", info=run.info)
    if not (folder / FAILED).exists():
        return None
    try:
        found = json.loads((folder / FAILED).read_text())
        return Outcome(found["status"], found["reason"])
    except (ValueError, KeyError, TypeError):
        return None


def record_failure(member: Member, error: InputError) -> None:
    """Writes why a run has no result."""
    folder, diverged = member.config.folder, isinstance(error, DivergedError)
    text = " ".join(first_line(error).split())
    # What follows the first part of the message (rows, checkpoints) depends on interruptions; tables must not.
    found = {"status": "diverged" if diverged else "error", "reason": text.partition("; ")[0] if diverged else text}
    if not (folder / "config.json").exists():
        paths.write_text(folder / "config.json", to_json(member.config))
    paths.write_text(folder / FAILED, json.dumps(found | {"message": text}, indent=2) + "\n")


def forget_failure(member: Member) -> None:
    """Removes what `record_failure` wrote, when a run is tried again or has succeeded."""
    (member.config.folder / FAILED).unlink(missing_ok=True)


def records(member: Member) -> list[dict[str, Any]]:
    """The run's metrics.jsonl."""
    return read_jsonl(member.config.folder / "metrics.jsonl")


def seconds(member: Member) -> float:
    """For how long the run was trained, evaluated apart; of runs trained together, the time of all of them."""
    lines = read_jsonl(member.config.folder / "timing.jsonl")
    return sum(line.get("seconds", 0.0) + line.get("compile_seconds", 0.0) for line in lines)
