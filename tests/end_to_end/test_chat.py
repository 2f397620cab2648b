"""``cacheir chat`` as a child: turns from a pipe, what is computed once, and an answer that is stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest


def test_turns_from_a_pipe(cacheir, artifact, runtime):
    def ask(messages):
        return "".join(runtime.chat(messages, max_new_tokens=10))

    first = {"role": "user", "content": "Hello"}
    said = {"role": "assistant", "content": ask([first])}
    second = {"role": "user", "content": "And now?"}
    expected = [said["content"], ask([first, said, second]), ask([second])]
    turns = "Hello\n\nAnd now?\n/reset\nAnd now?\n/exit\nnever asked\n"
    done = cacheir("chat", str(artifact), "--max-new-tokens", "10", "--stats", input=turns)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(text + "\n" for text in expected)
    reused = [int(count) for count in re.findall(r"\((\d+) cached\)", done.stderr)]
    # The second turn computes only what was new; the one after /reset finds the beginning of a turn.
    assert reused[0] == 0 and reused[1] >= len(runtime.chat_ids([first])) and reused[2] > 0


def test_a_turn_that_does_not_fit_is_taken_back(cacheir, artifact, runtime):
    done = cacheir("chat", str(artifact), "--max-new-tokens", "6", input="word " * 4000 + "\nHello\n")
    assert done.returncode == 0
    assert "the context holds 2048" in done.stderr
    assert done.stdout == "".join(runtime.chat([{"role": "user", "content": "Hello"}], max_new_tokens=6)) + "\n"


@pytest.mark.skipif(os.name != "posix", reason="signals are sent")
def test_an_interrupt_stops_the_answer_only(start_cacheir, artifact, runtime):
    child = start_cacheir("chat", str(artifact), "--max-new-tokens", "1900", "--temperature", "3", "--seed", "1")
    child.stdin.write(b"Hello\n")
    child.stdin.flush()
    assert child.stdout.read(2)
    child.send_signal(signal.SIGINT)
    child.stdin.write(b"/reset\n")
    child.stdin.flush()
    child.stdin.close()
    rest = child.stdout.read()
    err = child.stderr.read()
    assert child.wait(timeout=120) == 0, err
    child.stdout.close()
    child.stderr.close()
    assert rest.endswith(b" [stopped]\n")


def test_a_model_without_a_template_is_refused_at_once(cacheir, tiny, tmp_path):
    folder = tmp_path / "plain"
    folder.mkdir()
    for file in tiny.iterdir():
        if file.name != "tokenizer_config.json":
            (folder / file.name).write_bytes(file.read_bytes())
    config = (tiny / "tokenizer_config.json").read_text()
    (folder / "tokenizer_config.json").write_text(re.sub(r'"chat_template": ".*?(?<!\\)",\n', "", config))
    done = cacheir("chat", str(folder), input="Hello\n")
    assert done.returncode == 10 and done.stdout == ""
    assert "no chat template" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="a shell closes the stream")
def test_a_closed_standard_input_asks_nothing(artifact):
    command = ["sh", "-c", 'exec "$0" -m cacheir chat "$1" <&-', sys.executable, str(artifact)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
