"""``cacheir run`` as a child: what comes on which stream, in every form of prompt, and how it ends."""

from __future__ import annotations

import json
import os
import signal

import pytest

PROMPT = "CacheIR"
GREEDY = ("--max-new-tokens", "12")


@pytest.fixture(scope="module")
def answer(runtime):
    """What the API says to PROMPT: ids and text."""
    ids = list(runtime.generate_ids(runtime.encode(PROMPT), 12))
    return ids, "".join(runtime.generate(PROMPT, max_new_tokens=12))


def test_text_on_stdout_and_the_rest_on_stderr(cacheir, artifact, answer):
    done = cacheir("run", str(artifact), "--prompt", PROMPT, *GREEDY, "--stats")
    assert done.returncode == 0, done.stderr
    assert done.stdout == answer[1] + "\n"
    assert "loading the weights" in done.stderr and "12 tokens" in done.stderr and "backend cpu" in done.stderr


def test_a_model_folder_with_the_prompt_on_stdin_as_json(cacheir, tiny, runtime, answer):
    done = cacheir("run", str(tiny), *GREEDY, "--json", "--seed", "7", input=PROMPT + "\n")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["ids"], said["text"]) == answer
    assert said["prompt_ids"] == runtime.encode(PROMPT)
    assert said["finish_reason"] == "length" and said["stats"]["seed"] == 7 and said["backend"] == "cpu"
    layers = said["stats"]["kv_cache"]["layers"]
    assert set(layers) == {"0", "1"} and layers["0"]["pages"] == 2


def test_a_chat_with_a_system_message_and_a_stop_string(cacheir, artifact, runtime):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    whole = "".join(runtime.chat(messages, max_new_tokens=30))
    stop = whole[5:8]
    words = ("--chat", "--system", "Be brief.", "--prompt", "Hello", "--max-new-tokens", "30", "--stop", stop)
    done = cacheir("run", str(artifact), *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout == whole[: whole.index(stop)] + "\n"


def test_sampling_with_a_seed(cacheir, artifact, runtime):
    options = {"temperature": 1.5, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "seed": 42}
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    done = cacheir("run", str(artifact), "--prompt", PROMPT, *GREEDY, *words)
    assert done.stdout == "".join(runtime.generate(PROMPT, max_new_tokens=12, **options)) + "\n"
    assert done.stdout != "".join(runtime.generate(PROMPT, max_new_tokens=12)) + "\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--prompt", "a", "--temperature", "nan"), 10, "error: temperature must be from 0 to 100, not nan"),
        (("--prompt", "a", "--stop", ""), 10, "error: stop[0] is empty"),
        (("--prompt", "a", "--system", "b"), 2, "hint: add --chat"),
        (("--prompt", "word " * 5000), 10, "tokens and the context holds 2048"),
        (("--prompt", ""), 10, "error: the prompt is empty"),
        (("--prompt", "a", "--backend", "cuda"), 2, "compiled for the backend cpu, not cuda"),
        (("--prompt", "a", "--batch-invariant"), 2, "was not compiled batch-invariant"),
    ],
)
def test_what_cannot_be_is_one_line_and_a_code(cacheir, artifact, words, code, said):
    done = cacheir("run", str(artifact), *words)
    assert done.returncode == code
    assert said in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


def test_input_that_is_no_text(start_cacheir, artifact):
    child = start_cacheir("run", str(artifact))
    out, err = child.communicate(b"abc\xff\xfe")
    assert child.returncode == 2 and out == b""
    assert b"standard input is not UTF-8: byte 3 is 0xff" in err


def test_a_reader_that_goes_away_ends_it_quietly(start_cacheir, artifact):
    child = start_cacheir("run", str(artifact), "--prompt", PROMPT, "--max-new-tokens", "1500", "--ignore-eos")
    child.stdin.close()
    assert child.stdout.read(4)  # it streams: there is text long before the end
    assert child.poll() is None
    child.stdout.close()
    assert child.wait(timeout=120) == 141
    err = child.stderr.read()
    child.stderr.close()
    assert b"Traceback" not in err and b"Broken pipe" not in err


@pytest.mark.skipif(os.name != "posix", reason="signals are sent")
def test_an_interrupt_ends_it(start_cacheir, artifact):
    child = start_cacheir("run", str(artifact), "--prompt", PROMPT, "--max-new-tokens", "1500", "--ignore-eos")
    child.stdin.close()
    child.stdout.read(4)
    child.send_signal(signal.SIGINT)
    err = child.stderr.read()
    assert child.wait(timeout=120) == 130
    child.stdout.close()
    child.stderr.close()
    assert err.endswith(b"interrupted\n") and b"Traceback" not in err


def test_an_artifact_of_one_mode_cannot_generate(cacheir, tiny, tmp_path):
    for mode, other in (("prefill", "decode"), ("decode", "prefill")):
        made = cacheir("compile", str(tiny), "--mode", mode, "--output", str(tmp_path / mode))
        assert made.returncode == 0, made.stderr
        done = cacheir("run", str(tmp_path / mode), "--prompt", "hi")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"was compiled without {other}" in done.stderr


def test_names_that_no_file_can_have(cacheir, tiny):
    name = "x" * 5000
    done = cacheir("run", name, "--prompt", "hi")
    assert done.returncode == 2 and f"there is no model at {name}" in done.stderr
    done = cacheir("compile", str(tiny), "--output", name)
    assert done.returncode == 8 and f"cannot write {name}" in done.stderr
