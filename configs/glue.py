"""Fine-tunes a 6-layer MiniLM on a task of GLUE, or another named data set: configs/glue.py:TASK.

python train.py configs/glue.py:sst2
python train.py configs/glue.py:cola --data.train=GLUE/CoLA          the original tab-separated folder
python train.py configs/glue.py:mnli --data.dev_split=validation_mismatched
python train.py predict runs/sst2 GLUE/SST-2 --split test --form glue
python train.py configs/glue.py:sst2-minilm ...                      at the rate that a small model needs

TASK is a name of bertjax.data.tasks.TASKS. Without --data.train the rows come from TFDS, where it has the data set.
Rates and epochs are the BERT paper's (arXiv 1810.04805, appendix A.3), for models of its size.

With -minilm behind the task the rate is 1e-4, and SST-2 has 4 epochs. all-MiniLM-L6-v2 on 2 CPU cores, seed 0, float32,
at the last step, shares with their standard errors; `python benchmarks/glue.py GLUE` does it anew:

  sst2   8,000 of 67,349 training rows, 1,000 steps   accuracy 86.8 % (±1.1) on 872 dev rows    TF-IDF 81.0 (all rows)
  cola   8,551 rows, 802 steps                        Matthews 0.264 on 1,043 dev rows          TF-IDF 0.164
  stsb   5,749 rows, 539 steps                        Spearman 0.858, Pearson 0.856 on 1,500
  qnli   8,999 rows, 844 steps                        accuracy 82.5 % (±0.5) on 5,463           second text alone 53.8
  snli   8,999 rows, 844 steps                        accuracy 78.9 % (±0.4) on 9,842           hypothesis alone 56.3

Tried on dev rows: SST-2 with 3 epochs (85.9 %), with 2e-4 and 3 epochs (85.2 %); nothing else. This MiniLM was made a
sentence encoder on SNLI, MultiNLI and question-answer pairs, among others: qnli and snli are no clean test of what
pre-training on plain text gives, and similarity (stsb) is what it was made for.
"""

from bertjax.config import DataOptions, OptimOptions, RunConfig, TrainOptions
from bertjax.data.tasks import TASKS
from bertjax.errors import InputError

MINILM_RATE, MINILM_EPOCHS = 1e-4, {"sst2": 4.0}
NAMED = [name for name, task in TASKS.items() if task.labels or task.source]


def config(name: str = "") -> RunConfig:
    """`name` is a task with classes or a source of its own, for a small model with -minilm behind it."""
    task_name, _, size = name.partition("-")
    if task_name not in NAMED or size not in ("", "minilm"):
        raise InputError(f"configs/glue.py:{name}: expected TASK or TASK-minilm, TASK one of {', '.join(NAMED)}")
    task = TASKS[task_name]
    s = task.settings
    return RunConfig(
        name=name,
        data=DataOptions(
            task=task_name, train=task.source or f"{task_name}.tsv", max_length=s.max_length, group_by_length=16
        ),
        optim=OptimOptions(learning_rate=MINILM_RATE if size else s.learning_rate),
        train=TrainOptions(
            epochs=MINILM_EPOCHS.get(task_name, s.epochs) if size else s.epochs, batch_size=s.batch_size
        ),
    )
