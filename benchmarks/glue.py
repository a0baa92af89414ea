"""The five GLUE-like trainings whose results stand in configs/glue.py, done anew: MiniLM on the CPU, seeds fixed.

    python benchmarks/glue.py DATA [--runs FOLDER]

DATA holds the folders SST-2, CoLA, STS-B, QNLI and SNLI. Half an hour on 2 cores; a second call continues or prints
what is there. The bound of a task is what a result should beat; none was tuned on.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Task, training file, dev file, options, bound.
TASKS = (
    ("sst2", "SST-2/train.tsv", "SST-2/dev.tsv", ("--data.train_rows=8000",), 0.86),
    ("cola", "CoLA/train.tsv", "CoLA/dev.tsv", (), 0.164),
    ("stsb", "STS-B/train.tsv", "STS-B/dev.tsv", (), 0.80),
    ("qnli", "QNLI/train_subset_a8999.json", "QNLI/dev.tsv", (), 0.70),
    ("snli", "SNLI/train_subset_a8999.json", "SNLI/dev.txt", (), 0.65),
)


def main() -> int:
    """Trains what is not trained yet; 1 if a result is below its bound."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/glue"))
    given = parser.parse_args()
    lines, missed = [], False
    for task, train, dev, options, bound in TASKS:
        command = [sys.executable, ROOT / "train.py", f"{ROOT}/configs/glue.py:{task}-minilm", "--runs", given.runs]
        files = (f"--data.train={given.data / train}", f"--data.dev={given.data / dev}")
        subprocess.run([*command, *files, *options, "--train.snapshots=1"], check=True)
        info = json.loads((given.runs / f"{task}-minilm" / "run.json").read_text())
        rows, name = info["rows"], info["headline"]
        score = info["results"]["dev"][name]
        missed |= score <= bound
        lines.append(
            f"{task:<6} {rows['train']:>6,} rows, {info['steps']} steps: {name} {score:.4f} (bound {bound}) on the "
            f"{rows['dev']:,} dev rows"
        )
    print("\n".join(lines))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
