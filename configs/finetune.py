"""Fine-tunes any BERT on labelled texts of your own; the defaults of every option, said once.

python train.py configs/finetune.py --model.path=path/to/model --data.train=reviews.csv --data.text=review \
    --data.label=stars --name=reviews
python train.py configs/finetune.py:scratch ...      the same from random weights

Three epochs at 5e-5 with a tenth of the steps for warm-up, as in the BERT paper (arXiv 1810.04805, appendix A.3). All
rows are used; a tenth of them is held out unless --data.dev names a file.
"""

from bertjax.config import ModelOptions, RunConfig
from bertjax.errors import InputError


def config(start: str = "pretrained") -> RunConfig:
    """`start` is "pretrained" or "scratch"."""
    if start not in ("pretrained", "scratch"):
        raise InputError(f"configs/finetune.py:{start}: expected :pretrained or :scratch")
    return RunConfig(
        name=f"finetune-{start}", model=ModelOptions(init="pretrained" if start == "pretrained" else "random")
    )
