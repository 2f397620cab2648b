"""The plugin does what every plugin must; the sampler takes what its definition keeps, and works in a real answer."""

import numpy as np
import pytest
from cacheir import Runtime
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing import PluginTests, plugin_host
from cacheir_importers.tiny import write_tiny
from cacheir_top_n_sigma import top_n_sigma


class TestPlugin(PluginTests):
    plugin = "cacheir_top_n_sigma"


def test_tokens_far_below_the_best_are_never_taken():
    logits = np.array([[0.0, 4.0, 3.9, -1.0, 0.5, 0.2, -np.inf]], np.float32)
    pick = top_n_sigma(SamplingParams(temperature=2.0, seed=1))
    assert {int(pick(logits.copy())[0]) for _ in range(200)} == {1, 2}


def test_without_a_temperature_the_best_wins():
    logits = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)
    assert top_n_sigma(SamplingParams(seed=1))(logits).tolist() == logits.argmax(-1).tolist()


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEIR_CACHE_DIR", str(folder.parent / "cache"))
        host = plugin_host("cacheir_cpu.plugin", "cacheir_importers.plugin", "cacheir_top_n_sigma")
        with Runtime(folder, installation=host) as opened:
            yield opened


def test_equal_seeds_give_equal_answers(runtime):
    def answer(seed):
        return list(runtime.generate_ids([5, 6, 7], 16, sampler="top-n-sigma", temperature=3.0, seed=seed))

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)
