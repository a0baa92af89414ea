"""Fine-tunes a 6-layer MiniLM on a task of GLUE, or another named data set: configs/glue.py:TASK.

python train.py configs/glue.py:sst2
python train.py configs/glue.py:cola --data.train=GLUE/CoLA          the original tab-separated folder
python train.py configs/glue.py:mnli --data.dev_split=validation_mismatched
python train.py predict runs/sst2 GLUE/SST-2 --split test --form glue

TASK is a name of bertjax.data.tasks.TASKS. Without --data.train the rows come from TFDS, where it has the data set.
Rates and epochs are the BERT paper's (arXiv 1810.04805, appendix A.3) and tuned on no dev set.
"""

from bertjax.config import DataOptions, OptimOptions, RunConfig, TrainOptions
from bertjax.data.tasks import TASKS
from bertjax.errors import InputError

NAMED = [name for name, task in TASKS.items() if task.labels or task.source]


def config(name: str = "") -> RunConfig:
    """`name` is a task with classes or a source of its own."""
    if name not in NAMED:
        raise InputError(f"configs/glue.py:{name}: expected a task after the colon: {', '.join(NAMED)}")
    task = TASKS[name]
    s = task.settings
    return RunConfig(
        name=name,
        data=DataOptions(task=name, train=task.source or f"{name}.tsv", max_length=s.max_length, group_by_length=16),
        optim=OptimOptions(learning_rate=s.learning_rate),
        train=TrainOptions(epochs=s.epochs, batch_size=s.batch_size),
    )
