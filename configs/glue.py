"""Fine-tunes a 6-layer MiniLM on a task of GLUE, or another named data set: configs/glue.py:TASK.

python train.py configs/glue.py:sst2
python train.py configs/glue.py:cola --data.train=GLUE/CoLA          the original tab-separated folder
python train.py configs/glue.py:mnli --data.dev_split=validation_mismatched
python train.py predict runs/sst2 GLUE/SST-2 --split test --form glue

TASK is a name of bertjax.data.tasks.TASKS. Without --data.train the rows come from TFDS, where it has the data set.
Rates and epochs are the BERT paper's (arXiv 1810.04805, appendix A.3), for models of its size.

RESULTS
"""

from bertjax.config import DataOptions, OptimOptions, RunConfig, TrainOptions
from bertjax.data.tasks import TASKS
from bertjax.errors import InputError

# A small model needs higher rates: chosen among 1e-4 and 2e-4 by the SST-2 dev rows.
MINILM_RATE = 1e-4
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
        train=TrainOptions(epochs=s.epochs, batch_size=s.batch_size),
    )
