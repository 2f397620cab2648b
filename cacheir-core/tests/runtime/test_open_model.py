"""Opening: which backend and why, what the pools hold, and a model without a tokenizer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cacheir.errors import BackendUnavailable, RequestError, UsageError
from cacheir.plugins import BackendSpec
from cacheir.runtime.backend_choice import choose_backend
from cacheir.runtime.open_model import open_model
from cacheir.runtime.sampling import SamplingParams


class Backends(dict):
    """As much of an installation as choosing a backend looks at: each backend and what its probe says."""

    plugins = ()

    def __init__(self, **probes):
        super().__init__()
        for name, said in probes.items():
            probe = said if callable(said) else lambda said=said: said
            self[name] = BackendSpec(name=name, summary="s", targets=("t",), executor=lambda options: None, probe=probe)

    backends = property(lambda self: self)
    find = dict.get
    names = dict.keys


@pytest.fixture(autouse=True)
def no_usual_backend(monkeypatch):
    monkeypatch.delenv("CACHEIR_BACKEND", raising=False)


def test_the_variable_names_the_usual_backend(monkeypatch):
    monkeypatch.setenv("CACHEIR_BACKEND", "cpu")
    both = Backends(cpu=None, cuda=None)
    assert str(choose_backend(both, "auto")) == "cpu: CACHEIR_BACKEND names it"
    assert choose_backend(both, "cuda").name == "cuda"
    assert choose_backend(both, "auto", demanded="cuda").name == "cuda"
    with pytest.raises(BackendUnavailable, match="no driver"):
        monkeypatch.setenv("CACHEIR_BACKEND", "cuda")
        choose_backend(Backends(cpu=None, cuda="no driver"), "auto")


def test_a_backend_that_cannot_work_here_may_be_named_by_who_only_looks():
    for asked, demanded in (("cuda", ""), ("auto", "cuda")):
        choice = choose_backend(Backends(cpu=None, cuda="no driver"), asked, demanded=demanded, to_run=False)
        assert (choice.name, choice.refusal) == ("cuda", "no driver")
    assert choose_backend(Backends(cpu=None, cuda="no driver"), "auto", to_run=False).name == "cpu"
    assert choose_backend(Backends(cpu=None), "cpu", to_run=False).refusal == ""


def test_auto_takes_the_first_that_can_work_and_the_reference_last():
    choice = choose_backend(Backends(cpu=None, cuda="no driver", native="not built"), "auto")
    assert choice.name == "cpu" and choice.refusals == {"cuda": "no driver", "native": "not built"}
    assert choice.reason == "cuda cannot: no driver; native cannot: not built"
    choice = choose_backend(Backends(cpu=None, cuda=None), "auto")
    assert str(choice) == "cuda: it is the first that can work here"
    with pytest.raises(BackendUnavailable, match=r"no backend can work here \(cuda: no driver; cpu: no NumPy\)"):
        choose_backend(Backends(cpu="no NumPy", cuda="no driver"), "auto")
    with pytest.raises(BackendUnavailable, match="no installed plugin has one"):
        choose_backend(Backends(), "auto")


def test_a_backend_that_is_asked_for_must_work():
    assert choose_backend(Backends(cpu=None, cuda=None), "cpu").reason == "it was asked for"
    with pytest.raises(BackendUnavailable, match="cuda cannot work here: no driver"):
        choose_backend(Backends(cpu=None, cuda="no driver"), "cuda")
    with pytest.raises(BackendUnavailable, match="no installed plugin has a backend 'tpu'"):
        choose_backend(Backends(cpu=None), "tpu")


def test_an_artifact_runs_on_what_it_was_compiled_for():
    both = Backends(cpu=None, cuda=None)
    assert choose_backend(both, "auto", demanded="cpu").reason == "the artifact was compiled for it"
    assert choose_backend(both, "cpu", demanded="cpu").name == "cpu"
    with pytest.raises(UsageError, match="compiled for the backend cpu, not cuda"):
        choose_backend(both, "cuda", demanded="cpu")
    with pytest.raises(BackendUnavailable, match="no driver"):
        choose_backend(Backends(cuda="no driver"), "auto", demanded="cuda")


def test_a_probe_that_raises_costs_its_own_backend_alone():
    def broken():
        raise OSError("no such library")

    choice = choose_backend(Backends(cpu=None, cuda=broken), "auto")
    assert choice.name == "cpu" and choice.refusals == {"cuda": "its probe raised OSError: no such library"}
    with pytest.raises(BackendUnavailable, match="cuda cannot work here: its probe raised OSError: no such library"):
        choose_backend(Backends(cpu=None, cuda=broken), "cuda")


def test_ids_work_without_a_tokenizer_and_text_says_why_not(fake):
    executor = fake.FakeExecutor()
    model = open_model(fake.program(executor), executor, None, page_tokens=4)
    with fake.session(model, [1, 2]) as session:
        pieces = list(session.generate(SamplingParams(max_tokens=4, ignore_eos=True)))
        assert [token for piece in pieces for token in piece.ids] == fake.expected(executor, [1, 2], 4)
        assert all(piece.text == "" for piece in pieces)
        with pytest.raises(RequestError, match="without a tokenizer"):
            session.append_text("a")
    program = replace(fake.program(executor), spec=None)
    assert open_model(program, executor, fake.ByteTokenizer(), page_tokens=4).limits.vocab_size == 260
    with pytest.raises(UsageError, match="ids are unknown"):
        open_model(program, executor, None, page_tokens=4)


@pytest.mark.parametrize("bad", [{"page_tokens": 0}, {"chunk_tokens": 0}, {"kv_tokens": -1}])
def test_sizes_that_cannot_be(fake, bad):
    executor = fake.FakeExecutor()
    with pytest.raises(UsageError, match=next(iter(bad))):
        open_model(fake.program(executor), executor, fake.ByteTokenizer(), **bad)


def test_page_sizes_are_the_executors(fake):
    executor = fake.FakeExecutor()
    executor._capabilities = replace(executor.capabilities(), page_tokens=(16, 32))
    with pytest.raises(UsageError, match="no pages of 4 tokens") as raised:
        open_model(fake.program(executor), executor, fake.ByteTokenizer(), page_tokens=4)
    assert raised.value.hint == "it takes 16, 32"


def test_pools_hold_a_context_and_report_their_format(fake):
    executor = fake.FakeExecutor(page_tokens=16)
    # A window of 16 and steps of 64 tokens: one sequence never holds more than 6 pages of that group.
    for max_seq, kv_tokens, pages, window in ((100, 0, 512, 512), (10_000, 0, 625, 512), (100, 33, 3, 3)):
        model = open_model(
            fake.program(executor, max_seq=max_seq), executor, page_tokens=16, kv_tokens=kv_tokens, kv_dtype="f16"
        )
        assert [pool.size for pool in model.runner.kv.pools] == [pages, window]
        assert model.limits.max_seq == min(max_seq, pages * 16)
    with fake.session(model, [1]) as session:
        fake.tokens(session, 2)
        assert {layer.nbytes for layer in session.cache.layers.values()} == {16 * 2 * 8 * 2}


def test_a_closed_model_takes_no_steps(fake):
    model = fake.open_fake()
    session = fake.session(model, [1])
    model.runner.close()
    model.runner.close()
    assert model.executor.closed
    with pytest.raises(UsageError, match="the model is closed"):
        session.prefill()
    session.close()
