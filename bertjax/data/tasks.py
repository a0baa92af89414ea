"""What is predicted: one table row per task, with its head, its metrics and the kind of its labels."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A kind of prediction."""

    name: str
    """Name in `TASKS` and in --data.task."""
    head: str
    """Head of the model."""
    metrics: tuple[str, ...]
    """Names of bertjax.metrics.METRICS, in the order in which they are shown."""
    headline: str
    """The metric that stands for the result where there is room for one number."""
    higher_is_better: bool
    """Whether a larger headline metric is the better one."""
    numeric_label: bool
    """True: a label is a finite number. False: a label is the name of a class."""


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="classification",
            head="classification",
            metrics=("accuracy", "f1_macro", "matthews"),
            headline="accuracy",
            higher_is_better=True,
            numeric_label=False,
        ),
        Task(
            name="regression",
            head="regression",
            metrics=("pearson", "spearman", "mse"),
            headline="spearman",
            higher_is_better=True,
            numeric_label=True,
        ),
    )
}
"""Task name -> task."""
