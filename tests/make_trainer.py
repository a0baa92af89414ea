"""Makes tests/golden/trainer: what a Trainer of transformers leaves on disk, of a tiny BERT trained with PyTorch.

    .venv-bench/bin/python tests/make_trainer.py        (the environment that `make bench` makes)

start/                  a bare pre-trained encoder (BertModel), with the tokenizer
output/checkpoint-N/    BertForSequenceClassification after N steps, in the Trainer's layout
other/                  the encoder fine-tuned on another task
rows.tsv                labelled sentences
losses.json             PyTorch's mean loss over all rows: of each checkpoint, and of mixtures

The Trainer itself needs the package accelerate; here is its plain loop, with the same calls of save_pretrained.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
import transformers

FOLDER = Path(__file__).parent / "golden" / "trainer"
LABELS = ("neg", "neutral", "pos")
WORDS = {"pos": ("good", "great", "fine"), "neg": ("bad", "dull", "poor"), "neutral": ("red", "long", "late")}
FILLERS = ("the", "a", "film", "plot", "is", "was", "very", "it", "and")
STEPS, EVERY, BATCH = 30, 10, 8


def rows() -> list[tuple[str, str]]:
    """48 sentences, the labels in turn; some of them have another label's word besides."""
    draw = np.random.default_rng(0)
    made = []
    for i in range(48):
        label = LABELS[i % 3]
        words = [*draw.choice(FILLERS, draw.integers(2, 9)), WORDS[label][i % 2]]
        if i % 5 == 0:
            words.append(WORDS[LABELS[(i + 1) % 3]][2])
        made.append((" ".join(draw.permutation(words)), label))
    return made


def tokenizer() -> transformers.BertTokenizerFast:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *FILLERS, *(w for group in WORDS.values() for w in group)]
    vocabulary = FOLDER / "vocab.txt"
    vocabulary.write_text("\n".join(pieces) + "\n")
    made = transformers.BertTokenizerFast(str(vocabulary))
    vocabulary.unlink()
    return made


def loss_of(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> float:
    model.eval()
    with torch.no_grad():
        return float(model.double()(**batch).loss)


def train(model: torch.nn.Module, batch: dict[str, torch.Tensor], folder: Path | None) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    order = np.random.default_rng(1)
    for step in range(1, STEPS + 1):
        model.train()
        chosen = torch.tensor(order.choice(len(batch["labels"]), BATCH, replace=False))
        model(**{name: x[chosen] for name, x in batch.items()}).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if folder is not None and step % EVERY == 0:
            target = folder / f"checkpoint-{step}"
            model.save_pretrained(target)
            (target / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}) + "\n")


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    torch.manual_seed(0)
    data = rows()
    (FOLDER / "rows.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in data))
    tokens = tokenizer()
    config = transformers.BertConfig(
        vocab_size=len(tokens),
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=20,
        initializer_range=0.3,
    )
    start = transformers.BertModel(config)
    start.save_pretrained(FOLDER / "start")
    tokens.save_pretrained(FOLDER / "start")
    encoded = tokens([text for text, _ in data], padding=True, return_tensors="pt")
    losses = {}

    names = dict(enumerate(LABELS))
    load = transformers.BertForSequenceClassification.from_pretrained
    model = load(FOLDER / "start", num_labels=3, id2label=names, label2id={v: k for k, v in names.items()})
    batch = dict(encoded) | {"labels": torch.tensor([LABELS.index(label) for _, label in data])}
    train(model, batch, FOLDER / "output")
    final = load(FOLDER / "output" / f"checkpoint-{STEPS}")
    for step in range(EVERY, STEPS + 1, EVERY):
        losses[f"checkpoint-{step}"] = loss_of(load(FOLDER / "output" / f"checkpoint-{step}"), batch)
        mixed = load(FOLDER / "output" / f"checkpoint-{step}")
        mixed.classifier.load_state_dict(final.classifier.state_dict())
        losses[f"checkpoint-{step} under the final head"] = loss_of(mixed, batch)
    mixed = load(FOLDER / "output" / f"checkpoint-{STEPS}")
    mixed.bert.load_state_dict(start.state_dict())
    losses["start under the final head"] = loss_of(mixed, batch)
    mixed = load(FOLDER / "output" / f"checkpoint-{STEPS}")
    mixed.bert.encoder.layer[0].load_state_dict(start.encoder.layer[0].state_dict())
    losses["layer 0 rolled back"] = loss_of(mixed, batch)

    other = load(FOLDER / "start", num_labels=2)
    lengths = batch["attention_mask"].sum(dim=1)
    train(other, dict(encoded) | {"labels": (lengths > lengths.median()).long()}, None)
    other.save_pretrained(FOLDER / "other")
    (FOLDER / "losses.json").write_text(json.dumps(losses, indent=2) + "\n")
    size = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    print(f"{FOLDER}: {size:,} bytes; {json.dumps(losses, indent=2)}")


if __name__ == "__main__":
    main()
