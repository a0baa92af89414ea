"""What the words and symbols of the page mean: one row per term, with unit and source."""

from collections.abc import Mapping
from typing import Any

from bertjax.landscape.store import STATUS_MEANINGS
from bertjax.report.page_html import Html, el, join, table

HAO = "Hao et al. 2019"
LI = "Li et al. 2018"
OWN = "this project"

SOURCES = {
    HAO: "Y. Hao, L. Dong, F. Wei, K. Xu: Visualizing and Understanding the Effectiveness of BERT. EMNLP 2019, "
    "arXiv:1908.05620",
    LI: "H. Li, Z. Xu, G. Taylor, C. Studer, T. Goldstein: Visualizing the Loss Landscape of Neural Nets. "
    "NeurIPS 2018, arXiv:1712.09913",
}

# Term -> (meaning, unit, source).
TERMS: dict[str, tuple[str, str, str]] = {
    "θ₀, start": ("All parameters before the first training step.", "–", HAO),
    "θ₁, end": ("All parameters after the last training step.", "–", HAO),
    "δ₁, δ₂": (
        "Directions in parameter space; δ₁ = θ₁ − θ₀ unless the figure says otherwise. A δ₂ that comes from a "
        "training is scaled to the length of δ₁, a filter-normalized random one keeps its own; the figure says which.",
        "–",
        f"{HAO}; {LI}",
    ),
    "α": (
        "Position along δ₁: θ(α) = θ₀ + α·δ₁. α = 0 is the model before training, α = 1 after it.",
        "lengths of δ₁ (no unit)",
        HAO,
    ),
    "β": ("Position along δ₂: θ(α, β) = θ₀ + α·δ₁ + β·δ₂.", "lengths of δ₂ (no unit)", HAO),
    "‖δ‖": ("L2 norm of a direction over all parameters that move.", "that of the parameters", OWN),
    "cos(δ₁, δ₂)": ("Cosine of the angle between the directions; 0: at right angles.", "−1 to 1", OWN),
    "random, normalization filter": (
        "A Gaussian direction; each filter (output unit, embedding row, head) is scaled to the norm of the same "
        "filter of the trained weights, and biases and layer norms stand still.",
        "–",
        LI,
    ),
    "snapshot": ("The parameters at a step of the training, kept while it ran.", "–", OWN),
    "a, b": (
        "Place of a snapshot θᵢ: a = ⟨θᵢ − θ₀, δ₁⟩/‖δ₁‖², and b the length of all that is at right angles to δ₁: "
        "δ₂ stands for the whole rest. The start is (0, 0), the end (1, 0).",
        "lengths of δ₁",
        HAO,
    ),
    "least squares": (
        "The α and β of the point of the plane that is nearest to a snapshot; the distance off the plane says how far "
        "the snapshot is from it.",
        "lengths of δ₁, δ₂; L2 norm",
        OWN,
    ),
    "own head, final head": (
        "Loss of a snapshot under the classifier it had, and under the one at the end of training.",
        "–",
        OWN,
    ),
    "head fixed, head move": (
        "fixed: classifier (and a pooler that started fresh) keep their trained values at every point. move: they move "
        "along the directions like the rest.",
        "–",
        OWN,
    ),
    "loss": ("{loss_label}, over the same examples at every point, without dropout.", "{loss_unit}", HAO),
    "error rate": ("Share of examples whose most probable class is wrong.", "0 to 1", OWN),
    "standard error": (
        "Standard deviation of the values of the examples (n − 1) divided by √n: how far the mean may be off because "
        "only n examples were used.",
        "that of the value",
        "textbook",
    ),
    "±1.96 standard errors": ("95 % interval of the mean (normal distribution).", "that of the value", "textbook"),
    "status": (
        f"State of a point: {STATUS_MEANINGS}. A point that is not finite has an infinite or undefined value for at "
        "least one example. Points of status 0 and 2 are drawn as missing; nothing is filled in.",
        "–",
        OWN,
    ),
    "rollback group": (
        "Layers (or embeddings, or pooler) that are set back to θ₀ together in the trained model, without further "
        "training. none: the trained model. all: the whole encoder of the start under the trained head.",
        "–",
        f"{HAO}; embeddings and single layers: {OWN}",
    ),
    "moved distance": ("L2 norm of a group's part of θ₁ − θ₀.", "that of the parameters", OWN),
    "majority baseline": (
        "Accuracy on all dev rows of always answering the most frequent label of the training rows.",
        "0 to 1",
        "textbook",
    ),
    "accuracy": ("Share of examples whose most probable class is right.", "0 to 1", "textbook"),
    "f1_macro": ("F1 of each class that occurs or is predicted, averaged without weights.", "0 to 1", "textbook"),
    "matthews": ("Matthews correlation coefficient; 0 by convention for constant answers.", "−1 to 1", "textbook"),
    "pearson, spearman": ("Correlation of predictions and labels, of values or of ranks.", "−1 to 1", "textbook"),
    "mse": ("Mean squared error of the predictions.", "label unit squared", "textbook"),
    "train, dev": (
        "Rows the model was trained on, and rows held out. Curves and surfaces use a sample of them, drawn once; its "
        "size is written under each figure.",
        "rows",
        OWN,
    ),
    "step": ("One update of the optimizer, on one batch.", "updates", "textbook"),
    "train/loss": ("Mean loss of the steps since the record before, with dropout.", "{loss_unit}", OWN),
    "train/grad_norm": ("L2 norm of the whole gradient at the recorded step, before clipping.", "–", OWN),
    "train/learning_rate": ("Learning rate at the recorded step.", "–", OWN),
}


def definitions(loss_label: str) -> Html:
    """The table of terms and the list of sources.

    Arguments:
      loss_label: definition of the loss of this run with its unit, such as "mean cross entropy per example, nats".
    """
    name, _, unit = loss_label.partition(", ")
    words: Mapping[str, Any] = {"loss_label": name[:1].upper() + name[1:], "loss_unit": unit or "that of the loss"}
    rows = [[term, *(text.format_map(words) for text in row)] for term, row in TERMS.items()]
    return join(
        [
            table("Words and symbols of this page", ["term", "meaning", "unit", "source"], rows, prose=True),
            el("ul", *(el("li", el("b", f"{short}: "), text) for short, text in SOURCES.items())),
        ]
    )
