"""Settings of all tests: 8 forced CPU devices, quick compilation, strict promotion, no hub."""

import os

# Programs of tests run for moments and are compiled for seconds: compile them quickly. What has to be fast, or is long,
# runs in processes of its own (test_real.py, benchmarks).
XLA_FLAGS = (
    "--xla_force_host_platform_device_count=8",
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
)
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *XLA_FLAGS]).strip()
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(autouse=True)
def _private_cache(tmp_path, monkeypatch):
    """No test reads or writes the user's cache of tokenized rows."""
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="module")
def one_device():
    """Training in this module is on the first device alone: quick to compile."""
    from bertjax.training import sharding

    make_mesh = sharding.make_mesh
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sharding, "make_mesh", lambda options, devices=None: make_mesh(options, devices or jax.devices()[:1])
        )
        yield
