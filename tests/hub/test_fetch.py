"""Models by name from a Hub on the loopback device: what is downloaded, and what each fault gives."""

import asyncio
import errno
import json
import logging
import os
import random
import resource
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import huggingface_hub
import pytest
from fakes.hub_server import Hub, Repo, corrupt_at, cut_after, etag_of, refuse, slowly, stall_after
from fakes.scripts import wait_until
from huggingface_hub import constants

from engine.hub import api, download, fetch, find, located, named
from engine.hub.names import Name
from engine.hub.progress import Progress
from engine.support.errors import EngineError, ModelLoadError, RequestError
from engine.support.offloop import off_loop_or_undo

DATA = random.Random(1).randbytes(300_000)
OTHER = random.Random(2).randbytes(120_000)
Q8 = "m-Q8_0.gguf"


def get(text: str, memory: int | None = None, progress: Progress | None = None) -> Path:
    """The path of a model on the Hub; nothing is shown unless `progress` does."""
    return fetch(asked(text), memory=lambda: memory, progress=progress or Progress(None))


def asked(text: str) -> Name:
    name = named(text)
    assert name is not None
    return name


def theirs(*, local_files_only: bool = False) -> str:
    """The path that huggingface_hub's own download gives."""
    own: Any = huggingface_hub
    return own.hf_hub_download("own/repo", Q8, local_files_only=local_files_only)


def unfinished() -> list[Path]:
    return sorted(api.cache_directory().rglob("*.incomplete"))


class Kept:
    """A screen that keeps what it is shown."""

    every = 0.0

    def __init__(self) -> None:
        self.states: list[str] = []
        self.lines: list[str] = []

    def state(self, text: str) -> None:
        self.states.append(text)

    def line(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def repo(hub: Hub) -> Repo:
    return hub.add("own/repo", {Q8: DATA, "m-Q4_K_M.gguf": OTHER, "README.md": b"# M"})


# What is downloaded, and where it lies.


def test_a_file_comes_to_where_huggingface_hub_looks_for_it(hub: Hub, repo: Repo) -> None:
    path = get("own/repo:Q8_0")
    assert path.read_bytes() == DATA
    assert str(path) == theirs(local_files_only=True)
    assert path.readlink() == Path("../../blobs") / etag_of(DATA)
    known = huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE)
    assert known.warnings == []
    assert [(each.repo_id, [*each.refs]) for each in known.repos] == [("own/repo", ["main"])]
    assert unfinished() == []


def test_the_second_time_one_question_is_asked(hub: Hub, repo: Repo) -> None:
    first = get("own/repo:Q8_0")
    hub.requests.clear()
    assert get("own/repo:q8_0") == first
    assert [each.path for each in hub.requests] == ["/api/models/own/repo"]


def test_a_commit_that_is_here_is_not_asked_for(hub: Hub, repo: Repo) -> None:
    commit = repo.branches["main"]
    first = get(f"own/repo@{commit}:Q8_0")
    hub.requests.clear()
    assert get(f"own/repo@{commit}/{Q8}") == first
    assert hub.requests == []
    with pytest.raises(ModelLoadError, match="no quantisation 'Q2_K'"):
        get(f"own/repo@{commit}:Q2_K")


def test_huggingface_hubs_own_download_is_used(hub: Hub, repo: Repo) -> None:
    path = theirs()
    hub.requests.clear()
    assert str(get("own/repo:Q8_0")) == path
    assert hub.content_starts() == []


def test_bytes_that_are_here_are_not_downloaded_again_for_another_commit(hub: Hub, repo: Repo) -> None:
    old = get("own/repo:Q8_0")
    commit = repo.commit({Q8: DATA, "README.md": b"# Better"})
    hub.requests.clear()
    new = get("own/repo:Q8_0")
    assert (new.parent.name, new.resolve()) == (commit, old.resolve())
    assert hub.content_starts() == []


def test_a_new_commit_is_downloaded(hub: Hub, repo: Repo) -> None:
    get("own/repo:Q8_0")
    repo.commit({Q8: OTHER})
    assert get("own/repo:Q8_0").read_bytes() == OTHER


def test_all_parts_of_a_split_model(hub: Hub) -> None:
    parts = {f"m-Q8_0-0000{part}-of-00003.gguf": random.Random(part).randbytes(5_000) for part in (1, 2, 3)}
    hub.add("own/split", parts)
    shown = Kept()
    path = get("own/split", progress=Progress(shown))
    assert path.name == "m-Q8_0-00001-of-00003.gguf"
    assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == parts
    assert shown.states[-1].startswith("m-Q8_0-00001-of-00003.gguf  15.0 kB of 15.0 kB (100 %)")


def test_files_below_the_size_of_large_ones(hub: Hub) -> None:
    hub.add("own/small", {"s-Q8_0.gguf": b"GGUF" * 10})
    assert get("own/small").read_bytes() == b"GGUF" * 10


def test_folders_and_names_with_spaces(hub: Hub) -> None:
    hub.add("own/folders", {"a b/m #1 100%.gguf": DATA})
    assert get("own/folders/a b/m #1 100%.gguf").read_bytes() == DATA


def test_a_disk_without_links(hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "has_links", lambda: False)
    path = get("own/repo:Q8_0")
    assert not path.is_symlink()
    assert path.read_bytes() == DATA
    assert list((path.parents[2] / "blobs").iterdir()) == []
    hub.requests.clear()
    assert get("own/repo:Q8_0") == path
    assert hub.content_starts() == []


def test_names_that_leave_the_repository_are_not_there(hub: Hub) -> None:
    hub.add(
        "own/evil", {"../../../x-Q8_0.gguf": DATA, "/y-Q8_0.gguf": DATA, "a/../b-Q8_0.gguf": DATA, "c\\d.gguf": DATA}
    )
    with pytest.raises(ModelLoadError, match="has no GGUF file"):
        get("own/evil")


# What is chosen, and said.


def test_a_quantisation_is_chosen_by_the_memory_and_said(
    hub: Hub, repo: Repo, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "engine.hub")
    shown = Kept()
    assert get("own/repo", 2 << 30, Progress(shown)).name == "m-Q4_K_M.gguf"
    said = "own/repo: Q4_K_M, one of 2 (120 kB; 2.15 GB of memory are available)"
    assert shown.lines[0] == said
    assert said in caplog.messages


def test_memory_is_not_asked_for_what_is_named(hub: Hub, repo: Repo) -> None:
    def never() -> int:
        raise AssertionError("asked")

    assert fetch(asked("own/repo:Q8_0"), memory=never, progress=Progress(None)).name == Q8


def test_what_was_downloaded_before_is_chosen(hub: Hub, repo: Repo) -> None:
    get("own/repo:Q8_0")
    hub.requests.clear()
    assert get("own/repo").name == Q8
    assert hub.content_starts() == []


def test_a_model_is_found_without_downloading_it(hub: Hub, repo: Repo) -> None:
    found = find(asked("own/repo:Q8_0"))
    assert (found.commit, found.variant.size, found.is_here) == (repo.branches["main"], len(DATA), False)
    assert [variant.quantization for variant in found.variants] == ["Q4_K_M", "Q8_0"]
    assert hub.content_starts() == []


def test_branches_and_tags(hub: Hub, repo: Repo) -> None:
    commit = repo.commit({Q8: OTHER}, "refs/pr/1")
    assert get("own/repo@refs/pr/1:Q8_0").parent.name == commit
    assert get("own/repo:Q8_0").read_bytes() == DATA
    assert located("own/repo:Q8_0", revision="refs/pr/1").read_bytes() == OTHER
    with pytest.raises(RequestError, match="contradicts"):
        located("own/repo@main:Q8_0", revision="refs/pr/1")
    with pytest.raises(RequestError, match="is a path; leave it out"):
        located("model.gguf", revision="main")


def test_the_address_of_a_file(hub: Hub, repo: Repo) -> None:
    for view in ("blob", "resolve"):
        assert get(f"{hub.address}/own/repo/{view}/main/{Q8}").read_bytes() == DATA
    assert get(f"https://huggingface.co/own/repo/blob/main/{Q8}").read_bytes() == DATA


def test_what_exists_is_a_path(hub: Hub, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    with pytest.raises(ModelLoadError, match=r"no file own/repo, though there is a directory own.*hf://own/repo"):
        located("own/repo")
    assert located("hf://own/repo").name == "m-Q4_K_M.gguf"
    assert located("own/repo:Q8_0").name == Q8
    assert located("model.gguf") == Path("model.gguf")


# Interrupted, stalled, corrupted.


def test_a_broken_connection_is_resumed(hub: Hub, repo: Repo) -> None:
    hub.faults = [cut_after(100_000), cut_after(50_000), cut_after(0)]
    assert get("own/repo:Q8_0").read_bytes() == DATA
    assert hub.content_starts() == [0, 100_000, 150_000, 150_000]


def test_a_download_that_was_given_up_goes_on_with_the_next_call(hub: Hub, repo: Repo) -> None:
    hub.faults = [cut_after(100_000), *[cut_after(0)] * 3]
    shown = Kept()
    with pytest.raises(ModelLoadError, match=r"stopped at 100 kB of 300 kB, and 3 more attempts.*call again to go on"):
        get("own/repo:Q8_0", progress=Progress(shown))
    assert [each.stat().st_size for each in unfinished()] == [100_000]
    assert shown.lines[-1] == "m-Q8_0.gguf  stopped at 100 kB of 300 kB; the next attempt goes on from there"
    hub.requests.clear()
    shown = Kept()
    assert get("own/repo:Q8_0", progress=Progress(shown)).read_bytes() == DATA
    assert hub.content_starts() == [100_000]
    assert shown.states[0] == "m-Q8_0.gguf  100 kB of 300 kB (33 %)"
    assert unfinished() == []


def test_random_interruptions_always_end_in_the_right_bytes(hub: Hub, repo: Repo) -> None:
    draw = random.Random(3)
    for attempt in range(12):
        shutil.rmtree(api.cache_directory(), ignore_errors=True)
        hub.faults = [cut_after(draw.randrange(1, 60_000)) for _ in range(draw.randrange(1, 8))]
        hub.requests.clear()
        assert get("own/repo:Q8_0").read_bytes() == DATA, attempt
        assert hub.content_starts() == sorted(hub.content_starts()), attempt


def test_a_stalled_connection(hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.4)
    hub.faults = [stall_after(70_000, 5)]
    assert get("own/repo:Q8_0").read_bytes() == DATA
    assert hub.content_starts() == [0, 70_000]
    shutil.rmtree(api.cache_directory())
    monkeypatch.setattr(download, "WAITS", (0.01,))
    hub.faults = [stall_after(70_000, 5), stall_after(0, 5)]
    with pytest.raises(ModelLoadError, match=r"stopped at 70\.0 kB of 300 kB.*timed out"):
        get("own/repo:Q8_0")


@pytest.mark.parametrize("data", [DATA, b"GGUF" * 10], ids=["large", "small"])
def test_a_corrupted_download_is_refused_and_comes_anew(hub: Hub, data: bytes) -> None:
    hub.add("own/repo", {Q8: data})
    hub.faults = [corrupt_at(20)]
    with pytest.raises(ModelLoadError, match=f"arrived damaged: its hash is [0-9a-f]+, but should be {etag_of(data)}"):
        get("own/repo:Q8_0")
    assert not any(path.is_file() for path in api.repository_directory("own/repo").rglob("*"))
    assert get("own/repo:Q8_0").read_bytes() == data


def test_what_was_left_unfinished_is_checked_too(hub: Hub, repo: Repo) -> None:
    hub.faults = [cut_after(100_000), *[cut_after(0)] * 3]
    with pytest.raises(ModelLoadError):
        get("own/repo:Q8_0")
    left = unfinished()[0]
    left.write_bytes(b"\0" + left.read_bytes()[1:])
    with pytest.raises(ModelLoadError, match="arrived damaged"):
        get("own/repo:Q8_0")
    left.write_bytes(DATA + b"more than there should be")
    assert get("own/repo:Q8_0").read_bytes() == DATA


def test_files_too_large_for_one_request(hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_REQUEST", 80_000)
    hub.faults = [cut_after(30_000)]
    assert get("own/repo:Q8_0").read_bytes() == DATA
    assert hub.content_starts() == [0, 30_000, 110_000, 190_000, 270_000]


def test_a_server_that_sends_the_whole_file_again(hub: Hub, repo: Repo) -> None:
    hub.ignores_ranges = True
    hub.faults = [cut_after(100_000)]
    assert get("own/repo:Q8_0").read_bytes() == DATA


def test_a_cached_file_that_lost_its_end_comes_anew(hub: Hub, repo: Repo) -> None:
    path = get("own/repo:Q8_0")
    os.truncate(path, 10)
    assert get("own/repo:Q8_0").read_bytes() == DATA


def test_ctrl_c_keeps_what_came(hub: Hub, repo: Repo) -> None:
    class Impatient(Kept):
        def state(self, text: str) -> None:
            super().state(text)
            if not text.endswith("(0 %)"):
                raise KeyboardInterrupt

    shown = Impatient()
    with pytest.raises(KeyboardInterrupt):
        get("own/repo:Q8_0", progress=Progress(shown))
    (left,) = unfinished()
    assert 0 < left.stat().st_size < len(DATA)
    assert "stopped at" in shown.lines[-1]
    hub.requests.clear()
    begun = left.stat().st_size
    assert get("own/repo:Q8_0").read_bytes() == DATA
    assert hub.content_starts() == [begun]


# What the Hub refuses.


class Refusal(NamedTuple):
    """A state of the Hub, what is asked of it, and a part of what the user is told."""

    arrange: Callable[[Hub, pytest.MonkeyPatch], object]
    ask: str
    told: str


def nothing(hub: Hub, patch: pytest.MonkeyPatch) -> None:
    """All is well."""


def private(hub: Hub, patch: pytest.MonkeyPatch) -> None:
    hub.repos["own/repo"].is_private = True


def gated(hub: Hub, patch: pytest.MonkeyPatch) -> None:
    hub.repos["own/repo"].is_gated = True


def not_granted(hub: Hub, patch: pytest.MonkeyPatch) -> None:
    gated(hub, patch)
    hub.tokens.add("hf_new")
    patch.setenv("HF_TOKEN", "hf_new")


def bad_token(hub: Hub, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("HF_TOKEN", "hf_bad")


def good_token(hub: Hub, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("HF_TOKEN", "hf_good")


def no_network(hub: Hub, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")


def statuses(*codes: int) -> Callable[[Hub, pytest.MonkeyPatch], None]:
    def arrange(hub: Hub, patch: pytest.MonkeyPatch) -> None:
        hub.statuses = list(codes)

    return arrange


def page(hub: Hub, patch: pytest.MonkeyPatch) -> None:
    hub.page = b"<html>Log in to this network</html>"


def no_json_of_the_hub(hub: Hub, patch: pytest.MonkeyPatch) -> None:
    hub.page = json.dumps({"hello": "world"}).encode()


def forbidden_bytes(hub: Hub, patch: pytest.MonkeyPatch) -> None:
    hub.faults = [refuse(403)]


REFUSALS = {
    "no repository": Refusal(nothing, "own/reop:Q8_0", "no repository own/reop on .*no token is in use.*HF_TOKEN"),
    "no repository, with a token": Refusal(good_token, "own/reop", "token in use does not give access to it"),
    "private": Refusal(private, "own/repo:Q8_0", "no repository own/repo on .*, or it is private"),
    "gated": Refusal(gated, "own/repo:Q8_0", "is gated: its owner grants access.*then log in with `hf auth login`"),
    "gated, not granted": Refusal(not_granted, "own/repo:Q8_0", "is gated.*check that it was granted"),
    "bad token": Refusal(bad_token, "own/repo:Q8_0", "does not accept the token in use"),
    "no revision": Refusal(nothing, "own/repo@v9:Q8_0", "has no revision 'v9'. Leave it out.*/own/repo/commits/main"),
    "no commit": Refusal(nothing, f"own/repo@{'0' * 40}:Q8_0", "has no revision '0000"),
    "no quantisation": Refusal(nothing, "own/repo:Q2_K", r"It has Q4_K_M \(120 kB\), Q8_0 \(300 kB\)\."),
    "no file": Refusal(nothing, "own/repo/x.gguf", r"no GGUF file 'x\.gguf'. It has m-Q4_K_M\.gguf"),
    "no network": Refusal(no_network, "own/repo:Q8_0", r"http://127\.0\.0\.1:9 cannot be reached.*HTTPS_PROXY"),
    "out of order": Refusal(statuses(*[503] * 9), "own/repo:Q8_0", "status 503.*Try again later"),
    "too many requests": Refusal(statuses(*[429] * 9), "own/repo:Q8_0", "refuses further requests.*429"),
    "a login page": Refusal(page, "own/repo:Q8_0", "did not answer as the Hugging Face Hub does.*login page"),
    "not a hub": Refusal(no_json_of_the_hub, "own/repo:Q8_0", "did not answer as the Hugging Face Hub does"),
    "bytes refused": Refusal(forbidden_bytes, "own/repo:Q8_0", r"refused own/repo/m-Q8_0\.gguf at .* \(status 403"),
    "a name that cannot be": Refusal(nothing, "own/re--po", "cannot be the name of a repository"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_refusals_name_what_is_wrong_and_the_way_out(
    kind: str, hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrange, ask, told = REFUSALS[kind]
    arrange(hub, monkeypatch)
    with pytest.raises(ModelLoadError, match=told) as error:
        get(ask)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, EngineError)


def test_a_hub_that_is_out_for_a_moment(hub: Hub, repo: Repo) -> None:
    hub.statuses = [503, 200, 502, 200, 500]
    hub.faults = [refuse(503)]
    assert get("own/repo:Q8_0").read_bytes() == DATA


def test_a_file_that_went_after_it_was_listed(hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find(asked("own/repo:Q8_0"))
    repo.commits[found.commit] = {}
    with pytest.raises(ModelLoadError, match=r"m-Q8_0\.gguf at [0-9a-f]{40} is not there any more"):
        api.blob("own/repo", found.commit, Q8)


@pytest.mark.parametrize("arrange", [private, gated])
def test_a_token_opens_what_is_closed_and_stays_with_the_hub(
    hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch, arrange: Callable[[Hub, pytest.MonkeyPatch], None]
) -> None:
    arrange(hub, monkeypatch)
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert get("own/repo:Q8_0").read_bytes() == DATA
    told = {(each.host.partition(":")[0], each.token) for each in hub.requests if each.path != "/api/agent-harnesses"}
    assert told == {("127.0.0.1", "hf_good"), ("localhost", None)}


def test_a_renamed_repository_is_found_under_both_names(hub: Hub, repo: Repo) -> None:
    hub.renamed["old/name"] = "own/repo"
    path = get("old/name:Q8_0")
    assert path.read_bytes() == DATA
    assert get("old/name:Q8_0") == path


# Without the Hub.


def test_what_is_in_the_cache_needs_no_hub(
    hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = get("own/repo:Q8_0")
    for arrange in (no_network, private, bad_token, statuses(503), page):
        with monkeypatch.context() as patch:
            arrange(hub, patch)
            caplog.clear()
            for name in ("own/repo:Q8_0", "own/repo", "own/repo/*Q8*"):
                assert get(name) == path, arrange
                hub.statuses = [503] if arrange not in (no_network, private, bad_token, page) else []
            assert "The copy of own/repo in the cache is used instead" in caplog.text, arrange
            hub.repos["own/repo"].is_private, hub.page, hub.statuses = False, None, []


def test_access_that_was_withdrawn_leaves_the_copy_in_the_cache(hub: Hub, repo: Repo) -> None:
    path = get("own/repo:Q8_0")
    repo.commit({Q8: OTHER})
    repo.is_gated = True
    assert get("own/repo:Q8_0") == path


def test_offline(hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    path = get("own/repo:Q8_0")
    repo.commit({Q8: OTHER}, "v2")
    get("own/repo@v2:Q8_0")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert get("own/repo:Q8_0") == get("own/repo") == get(f"hf://own/repo/{Q8}") == path
    assert get("own/repo@v2").read_bytes() == OTHER
    with pytest.raises(
        ModelLoadError, match=r"HF_HUB_OFFLINE is set.*The cache has m-Q8_0\.gguf \(300 kB\), but own/r"
    ):
        get("own/repo:Q4_K_M")
    with pytest.raises(ModelLoadError, match="HF_HUB_OFFLINE is set, but own/none is not in the cache"):
        get("own/none")
    assert hub.requests == []


def test_an_interrupted_download_is_not_taken_for_a_model(
    hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.faults = [cut_after(100_000), *[cut_after(0)] * 3]
    with pytest.raises(ModelLoadError, match="stopped"):
        get("own/repo:Q8_0")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelLoadError, match="is not in the cache"):
        get("own/repo:Q8_0")


# The disk.


def test_a_disk_that_is_too_small_is_told_before_the_download(
    hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nearly_full(_: Path) -> Any:
        return usage

    usage = shutil.disk_usage(".")._replace(free=200_000)
    monkeypatch.setattr(shutil, "disk_usage", nearly_full)
    with pytest.raises(ModelLoadError, match=r"has 200 kB free, but 300 kB must be downloaded.*HF_HOME"):
        get("own/repo:Q8_0")
    assert hub.content_starts() == []


def test_a_disk_that_fills_up(hub: Hub, repo: Repo) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))
    try:
        with pytest.raises(ModelLoadError, match=r"is full \(File too large\).*call again to go on"):
            get("own/repo:Q8_0")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [each.stat().st_size for each in unfinished()] == [150_000]
    hub.requests.clear()
    assert get("own/repo:Q8_0").read_bytes() == DATA
    assert hub.content_starts() == [150_000]


def test_a_cache_that_cannot_be_written(hub: Hub, repo: Repo) -> None:
    api.cache_directory().parent.mkdir(exist_ok=True)
    api.cache_directory().write_text("a file, where a directory should be")
    with pytest.raises(ModelLoadError, match=r"cannot be used.*HF_HOME"):
        get("own/repo:Q8_0")


def test_no_space_left(hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelLoadError, match=r"is full \(No space left on device\)"):
        get("own/repo:Q8_0")


def test_a_slow_download_shows_speed_and_time(hub: Hub, repo: Repo) -> None:
    hub.faults = [slowly(30_000, 0.03)]
    shown = Kept()
    get("own/repo:Q8_0", progress=Progress(shown))
    assert any(" MB/s, " in state or " kB/s, " in state for state in shown.states)
    assert any(state.endswith(" left") for state in shown.states)
    assert shown.lines[-1].startswith("m-Q8_0.gguf  300 kB in ")


# Beside an event loop.


async def test_a_task_that_is_cancelled_ends_its_download(hub: Hub, repo: Repo) -> None:
    hub.faults = [slowly(10_000, 0.05)]
    ended = threading.Event()

    def work() -> Path:
        try:
            return get("own/repo:Q8_0")
        finally:
            ended.set()

    def never(_: object) -> None:
        raise AssertionError("there was nothing to undo")

    task = asyncio.create_task(off_loop_or_undo(work, never))
    await asyncio.to_thread(wait_until, lambda: bool(unfinished()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 10)
    (left,) = unfinished()
    assert left.stat().st_size < len(DATA)
    assert get("own/repo:Q8_0").read_bytes() == DATA
