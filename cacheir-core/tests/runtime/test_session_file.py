"""Sessions as files: what comes back is what was saved, and nothing that was not saved by us is taken."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheir.errors import ArtifactDamagedError, ArtifactError, ArtifactVersionError, CacheIRError, UsageError
from cacheir.runtime.session import Session
from cacheir.runtime.session_file import restore_session


def restored(model, path) -> Session:
    return Session(model, restore_session(model, path))


@pytest.fixture
def saved(fake, tmp_path) -> Path:
    model = fake.open_fake()
    with fake.session(model, list(range(30, 51))) as session:
        session.prefill()
        session.append([1, 2])
        session.save(tmp_path / "session")
    return tmp_path / "session"


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(length=st.integers(0, 40), computed=st.booleans(), page_tokens=st.integers(1, 7), before=st.integers(0, 9))
def test_a_restored_session_goes_on_as_it_would_have(fake, tmp_path, length, computed, page_tokens, before):
    path, prompt = tmp_path / "session", [7 * place % 200 for place in range(length)]
    first = fake.open_fake(fake.FakeExecutor(page_tokens=page_tokens))
    with fake.session(first, prompt) as session:
        if computed:
            session.prefill()
        session.save(path)
        cached = session.cached_tokens
    fake.assert_nothing_leaks(first)
    other = fake.open_fake(executor := fake.FakeExecutor(page_tokens=page_tokens))
    with fake.session(other, [9] * before) as neighbour, restored(other, path) as session:
        neighbour.prefill()
        assert (session.ids, session.cached_tokens) == (tuple(prompt), cached)
        if prompt:
            assert fake.tokens(session, 5) == fake.expected(executor, prompt, 5)
    fake.assert_nothing_leaks(other)


def test_the_rest_of_the_last_page_is_nobodys(fake, tmp_path):
    model = fake.open_fake(fake.FakeExecutor(groups=1))
    with fake.session(model, [99] * 8) as session:
        session.prefill()
    with fake.session(model, [1, 2]) as session:
        session.prefill()
        session.save(tmp_path / "session")
    data = (tmp_path / "session").read_bytes()
    assert 99.0 not in np.frombuffer(data[-32 - 4 * 2 * 2 * 8 * 4 : -32], "<f4")


def test_every_changed_byte_and_every_cut_is_seen(fake, saved):
    model, whole = fake.open_fake(), saved.read_bytes()
    for place in [*range(0, 400, 3), *range(400, len(whole), 97), len(whole) - 1]:
        saved.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        with pytest.raises(CacheIRError):
            restored(model, saved)
        saved.write_bytes(whole[:place])
        with pytest.raises(ArtifactDamagedError):
            restored(model, saved)
    saved.write_bytes(whole + b"\0")
    with pytest.raises(ArtifactDamagedError, match="promises"):
        restored(model, saved)
    fake.assert_nothing_leaks(model)


def test_sizes_are_checked_before_anything_is_read(fake, saved):
    whole = saved.read_bytes()
    saved.write_bytes(whole[:12] + struct.pack("<I", 0xFFFFFFFF) + whole[16:])
    with pytest.raises(ArtifactDamagedError, match="4294967295 bytes"):
        restored(fake.open_fake(), saved)


def test_what_is_not_ours_is_refused(fake, saved, tmp_path):
    with pytest.raises(UsageError, match="pages of so many tokens: 4, and here it is 8"):
        restored(fake.open_fake(fake.FakeExecutor(page_tokens=8)), saved)
    with pytest.raises(UsageError, match="keys and values of the kind"):
        restored(fake.open_fake(fake.FakeExecutor(groups=1)), saved)
    with pytest.raises(UsageError, match="cannot read"):
        restored(fake.open_fake(), tmp_path / "missing")
    whole = saved.read_bytes()
    saved.write_bytes(whole[:8] + struct.pack("<I", 2) + whole[12:])
    with pytest.raises(ArtifactVersionError):
        restored(fake.open_fake(), saved)
    saved.write_text("GGUF")
    with pytest.raises(ArtifactDamagedError):
        restored(fake.open_fake(), saved)


def test_another_format_of_keys_is_told_by_its_name(fake, saved):
    model = fake.open_fake()
    kept = ", ".join(sorted({kind.dtype for kind in model.kv_groups}))
    other = replace(model, kv_groups=tuple(replace(kind, dtype="bf16") for kind in model.kv_groups))
    with pytest.raises(UsageError, match=f"keys and values kept as {kept}, and here they are kept as bf16"):
        restored(other, saved)


def test_a_failed_save_leaves_what_was_there(fake, saved, monkeypatch):
    before, model = saved.read_bytes(), fake.open_fake(executor := fake.FakeExecutor())

    def broken(group, pages):
        raise OSError(28, "No space left on device")

    with fake.session(model, [1, 2, 3]) as session:
        session.prefill()
        monkeypatch.setattr(executor, "read_pages", broken)
        with pytest.raises(ArtifactError, match="No space left"):
            session.save(saved)
    assert saved.read_bytes() == before and list(saved.parent.iterdir()) == [saved]


KILLED = """
import os, signal, sys
from pathlib import Path
from cacheir.testing import fake_model as fake
executor = fake.FakeExecutor()
with fake.session(fake.open_fake(executor), [1] * 30) as session:
    session.prefill()
    executor.read_pages = lambda group, pages: os.kill(os.getpid(), signal.SIGKILL)
    session.save(Path(sys.argv[1]))
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_a_killed_save_is_cleared_away_by_the_next_start(fake, saved, capsys):
    before = saved.read_bytes()
    killed = subprocess.run([sys.executable, "-c", KILLED, str(saved)], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert saved.read_bytes() == before and len(list(saved.parent.iterdir())) == 2
    (leftover,) = (path for path in saved.parent.iterdir() if path != saved)
    with restored(fake.open_fake(), saved) as session:
        assert list(saved.parent.iterdir()) == [saved]
        session.save(saved)
        session.save(saved)
    assert list(saved.parent.iterdir()) == [saved]
    assert capsys.readouterr().err == f"removed {leftover}, which a process that was killed left behind\n"
