"""Loading weights, what a model says of itself, how its contexts are sized, and that closing gives the memory back."""

import ctypes
import gc
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
from fakes.pretending import Pretending
from files import model_files

from engine.llama import lib as llama_lib
from engine.llama import model as llama
from engine.llama import params as llama_params
from engine.llama.gguf.gguf import NamedTemplate
from engine.llama.model import Model
from engine.llama.params import on_cpu
from engine.llama.plan.footprint import Cells, cells_of, estimate
from engine.llama.plan.machine import anonymous_memory, return_freed_memory
from engine.llama.plan.plan import RESERVE, Machine
from engine.runtime.loop.backend import Row
from engine.runtime.loop.config import ContextOptions, ModelOptions
from engine.support.errors import ContextOverflowError, EngineError, ModelLoadError, RequestError

MIB = 1 << 20


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_files.write(tmp_path_factory.mktemp("llama") / "tiny.gguf")


def test_a_model_says_what_it_is(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_string("tokenizer.chat_template.tool_use", "T")

    with Model.load(model_files.write(tmp_path / "m.gguf", change=change)) as model:
        info = model.info
        assert (info.architecture, info.name, info.quantization, info.n_ctx_train) == ("llama", "tiny", "F32", 512)
        assert (info.bos_text, info.eos_text, info.add_bos) == ("<s>", "</s>", True)
        assert info.chat_template == model_files.TEMPLATE
        assert info.named_templates == (NamedTemplate("tool_use", "T"),)
        assert (info.is_recurrent, info.is_hybrid) == (False, False)
        lib = llama_lib.library()
        assert info.parameters == lib.llama_model_n_params(model.handle)
        assert info.size_bytes == lib.llama_model_size(model.handle)


@pytest.mark.parametrize(("architecture", "recurrent", "hybrid"), [("mamba", True, False), ("lfm2", False, True)])
def test_recurrent_and_hybrid_models_are_told(tmp_path: Path, architecture: str, recurrent: bool, hybrid: bool) -> None:
    with Model.load(model_files.write(tmp_path / "m.gguf", architecture)) as model:
        assert (model.info.is_recurrent, model.info.is_hybrid) == (recurrent, hybrid)
        assert not model.backend().info.can_share


def test_a_split_model_loads(tmp_path: Path, tiny: Path) -> None:
    model_files.write(tmp_path / "m.gguf", split_bytes=20_000)
    first = min(tmp_path.glob("m-00001-of-*.gguf"))
    with Model.load(first) as model, Model.load(tiny) as whole:
        assert model.info.size_bytes == whole.info.size_bytes


def test_a_file_that_llama_cpp_rejects_says_what_llama_cpp_said(tmp_path: Path) -> None:
    path = model_files.write(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_oops.weigh"[:19]))
    with pytest.raises(ModelLoadError, match=r"blk\.1\.ffn_up\.weight.*may be damaged"):
        Model.load(path)


def test_an_unknown_architecture(tmp_path: Path) -> None:
    path = model_files.write(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes().replace(b"llama", b"lamma"))
    with pytest.raises(ModelLoadError, match="unknown model architecture: 'lamma'"):
        Model.load(path)


def test_progress_is_told_and_may_stop_the_loading(tiny: Path) -> None:
    seen: list[float] = []
    Model.load(tiny, progress=seen.append).close()
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    with pytest.raises(ModelLoadError, match="stopped by its progress callback"):
        Model.load(tiny, progress=lambda fraction: fraction < 0)


def test_an_error_of_the_progress_callback_is_raised(tiny: Path) -> None:
    told: list[float] = []

    def progress(fraction: float) -> None:
        told.append(fraction)
        raise LookupError("no bar to draw")

    with pytest.raises(LookupError, match="no bar to draw"):
        Model.load(tiny, progress=progress)
    assert len(told) == 1, "it stopped there"


def interrupt_the_caller(interrupted: threading.Event) -> None:
    """As Ctrl-C does, while the main thread waits for the one that loads; again, should it just have begun to wait."""
    for _ in range(100):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if interrupted.wait(0.1):
            break
    assert interrupted.is_set()
    time.sleep(0.2)


@pytest.fixture
def interrupted() -> Iterator[threading.Event]:
    """Set once the main thread has got a KeyboardInterrupt."""
    if sys.platform == "win32":
        pytest.skip("no signal can be sent to a thread")
    event = threading.Event()

    def handler(*_: object) -> None:
        if not event.is_set():
            event.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handler)
    yield event
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_stops_the_loading(tiny: Path, interrupted: threading.Event) -> None:
    told: list[float] = []

    def progress(fraction: float) -> None:
        told.append(fraction)
        interrupt_the_caller(interrupted)

    with pytest.raises(KeyboardInterrupt):
        Model.load(tiny, progress=progress)
    assert len(told) == 1, "it did not load on"


@pytest.mark.parametrize(
    ("make", "free"), [("llama_model_load_from_file", "llama_model_free"), ("llama_init_from_model", "llama_free")]
)
def test_ctrl_c_frees_what_was_made_all_the_same(
    tiny: Path, interrupted: threading.Event, monkeypatch: pytest.MonkeyPatch, make: str, free: str
) -> None:
    lib = llama_lib.library()
    making, freeing = getattr(lib, make), getattr(lib, free)
    made: list[int] = []
    freed: list[int] = []

    def slowly(*args: Any) -> int:
        made.append(making(*args))
        interrupt_the_caller(interrupted)
        return made[0]

    def note(address: int) -> None:
        freed.append(address)
        freeing(address)

    with monkeypatch.context() as patch:
        patch.setattr(lib, make, slowly)
        patch.setattr(lib, free, note)
        with pytest.raises(KeyboardInterrupt), Model.load(tiny) as model:
            model.backend(ContextOptions(n_ctx=256))
        assert made[0]
        assert freed == made


def test_no_thread_of_the_loading_outlives_it(tiny: Path) -> None:
    """OpenMP's workers live as long as the thread that had them; they would slow every decode down."""
    loaders: list[threading.Thread] = []
    with Model.load(tiny, progress=lambda _: loaders.append(threading.current_thread())):
        assert loaders
        assert threading.current_thread() not in loaders
        assert not any(thread.is_alive() for thread in loaders)


def test_every_option_is_accepted(tiny: Path) -> None:
    options = ModelOptions(
        n_gpu_layers=-1,
        split_mode="none",
        tensor_split=(1.0,),
        use_mmap=False,
        use_extra_bufts=False,
    )
    context = ContextOptions(
        n_ctx=300, n_batch=64, n_ubatch=32, n_sequences=2, n_threads=1, n_threads_batch=1, flash_attn="on",
        type_k="q8_0", type_v="q8_0", kv_unified=False, offload_kqv=False, swa_full=False,
        rope_freq_base=10_000.0,
        rope_freq_scale=0.5,
    )  # fmt: skip
    with Model.load(tiny, options) as model:
        backend = model.backend(context)
        info = backend.info
        assert (info.n_ctx, info.n_batch, info.n_sequences, info.kv_tokens) == (300, 64, 2, 0)
        backend.decode([Row(5, 0, 0, True), Row(6, 0, 1, True)])
        assert backend.options == context
        assert model.options is options


@pytest.mark.parametrize(
    ("given", "threads"),
    [
        (ContextOptions(), (2, 4)),
        (ContextOptions(n_threads=3), (3, 3)),
        (ContextOptions(n_threads_batch=5), (2, 5)),
        (ContextOptions(n_threads=3, n_threads_batch=5), (3, 5)),
    ],
)
def test_threads_for_one_token_and_for_many(
    given: ContextOptions, threads: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_params, "default_threads", lambda: 2)
    monkeypatch.setattr(llama_params, "batch_threads", lambda: 4)
    cells = Cells(1, 512, 1)
    made = llama_params.context_params(llama_lib.library(), given, cells, ctypes.create_string_buffer(2))
    assert (made.n_threads, made.n_threads_batch) == threads


def test_a_conversation_may_hold_a_modest_length_unless_said_otherwise(
    tmp_path: Path, tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = model_files.write(tmp_path / "m.gguf", shape=model_files.Shape(n_ctx=16_384))
    with caplog.at_level(logging.DEBUG, logger="engine.llama"), Model.load(tiny) as model, Model.load(path) as long:
        assert model.backend().info.n_ctx == 512, "the training length"
        assert "n_ctx=512 tokens a conversation (the default)" in caplog.text
        for options in (ContextOptions(), ContextOptions(n_sequences=3), ContextOptions(kv_unified=True)):
            assert long.backend(options).info.n_ctx == 8192
        assert long.backend(ContextOptions(kv_unified=True, kv_tokens=1024)).info.n_ctx == 1024
        caplog.clear()
        assert long.backend(ContextOptions(n_ctx=9000, n_sequences=2, kv_unified=False)).info.n_ctx == 9000
        assert "n_ctx=9,000 tokens a conversation (as asked for)" in caplog.text
        assert "n_sequences=2 (as asked for), a KV buffer for each" in caplog.text


@pytest.mark.parametrize(
    ("options", "sequences", "kv_tokens"),
    [
        ({}, 4, 2048),
        ({"n_sequences": 1}, 1, 0),
        ({"n_sequences": 7}, 7, 3584),
        ({"n_sequences": 7, "kv_unified": False}, 7, 0),
        ({"n_batch": 2}, 2, 1024),
        ({"n_sequences": 32}, 32, 16_384),
        ({"kv_tokens": 600}, 4, 768),
        ({"kv_unified": True, "n_sequences": 16, "kv_tokens": 1000}, 16, 1024),
    ],
)
def test_how_many_conversations_and_where(
    tiny: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any], sequences: int, kv_tokens: int
) -> None:
    with Model.load(tiny) as model, caplog.at_level(logging.DEBUG, logger="engine.llama"):
        info = model.backend(ContextOptions(**options)).info
        assert (info.n_sequences, info.kv_tokens) == (sequences, kv_tokens)
        said = "one pool for all" if kv_tokens else "a KV buffer for each"
        assert f"n_sequences={sequences}" in caplog.text
        assert said in caplog.text


def needed(model: Model, n_sequences: int, n_ctx: int = 512) -> int:
    """Memory for so many conversations, in bytes."""
    options = on_cpu(model.file, ContextOptions(kv_unified=n_sequences > 1), n_ctx, n_sequences)
    return estimate(model.file, options, cells_of(options, n_ctx, n_sequences)).total


def having(room: int, *gpus: llama_lib.Device) -> Machine:
    """A machine that so many bytes can be planned with on."""
    return Machine(int(room / (1 - RESERVE)) + 1, gpus=gpus)


def test_as_many_conversations_as_fit_into_half_of_the_memory(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Model.load(tiny) as model:
        monkeypatch.setattr(model, "_held", 1 << 40)
        for room, sequences in (
            (2 * needed(model, 4), 4),
            (2 * needed(model, 4) - 2, 3),
            (2 * needed(model, 2), 2),
            (needed(model, 1), 1),
        ):
            monkeypatch.setattr(model, "_machine", lambda room=room: having(room))
            assert model.backend().info.n_sequences == sequences
        assert model.backend(ContextOptions(check_memory=False)).info.n_sequences == 4


def test_only_what_was_left_out_is_made_to_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model_files.write(tmp_path / "m.gguf", shape=model_files.Shape(n_ctx=16_384))
    with Model.load(path) as model:
        room = needed(model, 1, 2560)
        monkeypatch.setattr(model, "_held", 1 << 40)
        monkeypatch.setattr(model, "_machine", lambda: having(room))
        info = model.backend().info
        assert (info.n_ctx, info.n_sequences) == (2560, 1)
        with pytest.raises(ContextOverflowError, match=r"n_ctx=4,096 needs .* the largest that fits is n_ctx=2,560\."):
            model.backend(ContextOptions(n_ctx=4096))
        fewer = model.backend(ContextOptions(n_sequences=3, kv_unified=False)).info
        assert (fewer.n_ctx < 2560, fewer.n_sequences) == (True, 3)
        with pytest.raises(ContextOverflowError, match="n_ctx=2,560 with n_sequences=3 needs"):
            model.backend(ContextOptions(n_ctx=2560, n_sequences=3, kv_unified=False))
        with pytest.raises(ContextOverflowError, match=r"kv_tokens=90,000 needs .* that fits is kv_tokens=[\d,]+\."):
            model.backend(ContextOptions(kv_unified=True, kv_tokens=90_000))
        monkeypatch.setattr(model, "_machine", lambda: having(MIB))
        with pytest.raises(ContextOverflowError, match="not even the smallest fits"):
            model.backend()
        assert model.backend(ContextOptions(check_memory=False)).info.n_ctx == 8192


def test_mapped_weights_count_as_taken(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Model.load(tiny) as model:
        monkeypatch.setattr(model, "_machine", lambda: having(needed(model, 1)))
        monkeypatch.setattr(model, "_held", 1 << 40)
        assert model.backend().info.n_ctx == 512
        monkeypatch.setattr(model, "_held", 0)
        with pytest.raises(ContextOverflowError):
            model.backend()


def test_a_context_beyond_memory_is_refused_with_the_numbers(tiny: Path) -> None:
    with Model.load(tiny) as model:
        with pytest.raises(
            ContextOverflowError, match=r"n_ctx=2,000,000,000 needs about [\d,]+ MiB.*n_ctx=[\d,]+\."
        ) as caught:
            model.backend(ContextOptions(n_ctx=2_000_000_000))
        assert "MiB are available besides the weights; the largest that fits is" in str(caught.value)


def test_without_knowledge_of_the_memory_nothing_is_refused(tiny: Path) -> None:
    with Model.load(tiny, machine=lambda: Machine(None)) as model:
        assert model.backend().info.n_ctx == 512


def test_a_context_above_the_training_length_is_warned_about(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Model.load(tiny) as model:
        assert model.backend(ContextOptions(n_ctx=1024)).info.n_ctx == 1024
        assert "n_ctx=1,024 is more than this model's positions reach (trained on 512 tokens)" in caplog.text
        caplog.clear()
        model.backend(ContextOptions(n_ctx=512, kv_unified=True, kv_tokens=2048))
        assert "more than this model's positions" not in caplog.text


def test_weights_beyond_memory_are_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.llama.plan.plan.available_memory", lambda: 1000)
    with pytest.raises(ModelLoadError, match="for its weights"):
        Model.load(tiny)
    Model.load(tiny, ModelOptions(check_memory=False)).close()


@pytest.mark.parametrize(
    "options",
    [
        {"n_ctx": 0},
        {"n_ctx": -5},
        {"n_batch": 0},
        {"n_ubatch": 0},
        {"n_sequences": 0},
        {"n_sequences": 257},
        {"n_threads": 0},
        {"n_threads_batch": -1},
        {"flash_attn": "maybe"},
        {"type_k": "q3_k"},
        {"type_v": "int8"},
        {"type_v": "q8_0", "flash_attn": "off"},
        {"rope_freq_base": -1.0},
        {"outputs_per_sequence": 0},
        {"n_sequences": 16, "n_batch": 8},
        {"kv_tokens": 512, "kv_unified": False},
        {"kv_tokens": 512, "n_ctx": 513},
        {"n_threads": 10_000},
        {"n_ctx": "five"},
        {"n_ctx": True},
        {"kv_unified": 1},
        {"checkpoint_mib": -1},
    ],
)
def test_context_options_that_make_no_sense(options: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        ContextOptions(**options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "options", [{"n_gpu_layers": -2}, {"main_gpu": -1}, {"split_mode": "diagonal"}, {"tensor_split": (0.5, -0.5)}]
)
def test_model_options_that_make_no_sense(options: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        ModelOptions(**options)  # pyright: ignore[reportArgumentType]


def test_use_after_close(tiny: Path) -> None:
    model = Model.load(tiny)
    backend = model.backend()
    sampler_free = model.backend()
    sampler_free.close()
    sampler_free.close()
    model.close()
    model.close()
    with pytest.raises(EngineError, match="is closed"):
        model.backend()
    with pytest.raises(EngineError, match="is closed"):
        backend.decode([Row(5, 0, 0, True)])
    with pytest.raises(EngineError, match="is closed"):
        backend.positions(0)
    with pytest.raises(EngineError, match="is closed"):
        model.vocab.tokenize("a", special=False)


def test_a_vocabulary_does_not_keep_its_model_alive(tiny: Path) -> None:
    vocab = Model.load(tiny).vocab
    gc.collect()
    with pytest.raises(ModelLoadError, match="keep the Model"):
        vocab.tokenize("a", special=False)


def test_a_backend_keeps_its_model_alive(tiny: Path) -> None:
    backend = Model.load(tiny).backend()
    gc.collect()
    backend.decode([Row(5, 0, 0, True)])
    assert backend.vocab.tokenize("hello", special=False)


def _held() -> int | None:
    """Returns the memory in use, without what glibc keeps of what was freed."""
    gc.collect()
    return_freed_memory()
    return anonymous_memory()


def growth(use: Callable[[Path], None], directory: Path) -> int:
    """Bytes that five uses leave behind; one takes about 12 MiB while it lasts."""
    shape = model_files.Shape(n_embd=128, n_ctx=16_384, n_vocab=2000)
    path = model_files.write(directory / "m.gguf", shape=shape)
    use(path)
    before = _held()
    for _ in range(5):
        use(path)
    after = _held()
    if before is None or after is None:
        pytest.skip("this system does not tell a process's memory")
    return after - before


def test_closing_gives_the_memory_back(tmp_path: Path) -> None:
    held: list[object] = []

    def use(path: Path) -> None:
        with Model.load(path, ModelOptions(use_mmap=False)) as model:
            backend = model.backend()
            backend.decode([Row(5, 0, 0, True)])
            held.extend((model, backend))

    assert growth(use, tmp_path) < 30 * MIB


def test_forgotten_models_are_freed(tmp_path: Path) -> None:
    def forget(path: Path) -> None:
        Model.load(path, ModelOptions(use_mmap=False)).backend().decode([Row(5, 0, 0, True)])

    assert growth(forget, tmp_path) < 30 * MIB


def test_nothing_is_printed_and_a_forgotten_model_ends_well(tiny: Path) -> None:
    program = (
        "from engine.llama.model import Model\n"
        "from engine.runtime.loop.backend import Row\n"
        f"backend = Model.load({str(tiny)!r}).backend()\n"
        "backend.decode([Row(5, 0, 0, True)])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_nothing_is_left_open_at_the_end(tiny: Path) -> None:
    code = "import sys\nfrom engine.llama.model import Model\nwith Model.load(sys.argv[1]): pass\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", code, str(tiny)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_importing_the_runtime_does_not_import_llama_cpp() -> None:
    program = (
        "import sys, engine.llama.model, engine.llama.context\n"
        "print([name for name in ('llama_cpp', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_facts_of_the_library() -> None:
    facts = llama_lib.facts()
    assert facts.version
    assert facts.path.is_file()
    assert "CPU" in facts.system_info
    assert facts.supports_gpu_offload == any(device.is_gpu for device in facts.devices)
    assert any(device.name == "CPU" and device.memory_total > 0 for device in facts.devices)


def test_a_library_without_device_functions_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        _lib = object()

    monkeypatch.setattr(llama_lib, "library", Library)
    assert llama_lib.devices() == ()


def test_options_that_llama_cpp_rejects_are_named(tmp_path: Path) -> None:
    shape = model_files.Shape(n_embd=32, n_head=4)
    with (
        Model.load(model_files.write(tmp_path / "m.gguf", shape=shape)) as model,
        pytest.raises(RequestError, match="block size 32 does not divide"),
    ):
        model.backend(ContextOptions(type_k="q8_0"))


def test_a_llama_is_adopted(tiny: Path) -> None:
    import llama_cpp

    llama: Any = llama_cpp.Llama(str(tiny), n_ctx=256, n_threads=1, verbose=False)
    model = Model.adopt(llama)
    backend = model.backend(ContextOptions(n_ctx=256, n_threads=1))
    backend.decode([Row(5, 0, 0, True)])
    assert model.info.n_ctx_train == 512
    model.close()
    with pytest.raises(EngineError, match="is closed"):
        backend.decode([Row(5, 1, 0, True)])
    llama.eval([5, 6])
    assert llama.n_tokens == 2
    again = Model.adopt(llama)
    llama.close()
    with pytest.raises(EngineError, match="is closed"):
        again.backend()
    with pytest.raises(EngineError, match="closed"):
        Model.adopt(llama)


def test_only_a_llama_is_adopted() -> None:
    with pytest.raises(ModelLoadError, match=r"is not an open llama_cpp\.Llama"):
        Model.adopt("model.gguf")


def test_an_encoder_decoder_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama, "library", lambda: Pretending(llama_model_has_encoder=True))
    with pytest.raises(ModelLoadError, match="an encoder-decoder model"):
        Model.load(tiny)


def test_a_diffusion_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="a diffusion model"):
        Model.load(model_files.write(tmp_path / "m.gguf", "llada"))


def test_what_is_offloaded_needs_room_on_the_device(tiny: Path) -> None:
    gpu = llama_lib.Device("CUDA0", "a card", True, 100 * MIB, 200 * MIB)
    for layers, fits in ((-1, True), (2, False), (1, False), (0, False)):
        options = ModelOptions(n_gpu_layers=layers, check_memory=False)
        with Model.load(tiny, options, machine=lambda: having(22 * MIB, gpu, gpu)) as model:
            if fits:
                assert model.backend(ContextOptions(n_threads=1)).info.n_ctx == 512
            else:
                with pytest.raises(ContextOverflowError):
                    model.backend(ContextOptions(n_ctx=16_384))


def test_weights_beyond_memory_may_go_to_a_device(tiny: Path) -> None:
    gpu = llama_lib.Device("CUDA0", "a card", True, 100 * MIB, 200 * MIB)
    Model.load(tiny, ModelOptions(n_gpu_layers=-1), machine=lambda: having(1000, gpu)).close()
    with pytest.raises(ModelLoadError, match="for its weights"):
        Model.load(tiny, machine=lambda: having(1000))


def test_a_library_that_cannot_be_loaded_says_how_to_install_it() -> None:
    program = (
        "import sys\n"
        "sys.modules['llama_cpp'] = None\n"
        "from engine.support.errors import EngineError\n"
        "from engine.llama.lib import library\n"
        "try:\n    library()\nexcept EngineError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install --force-reinstall --no-cache-dir llama-cpp-python==" in done.stdout


def test_the_package_around_the_functions_is_not_run_and_finds_the_same_ones_later() -> None:
    program = (
        "import sys\n"
        "from engine.llama.lib import library, library_version\n"
        "functions, version = library(), library_version()\n"
        "print('llama_cpp' in sys.modules, 'jinja2' in sys.modules)\n"
        "import llama_cpp\n"
        "print(llama_cpp.llama_cpp is functions, llama_cpp.Llama.__name__, llama_cpp.__version__ == version)\n"
        "from engine.llama.lib import forget_errors, last_errors\n"
        "forget_errors()\n"
        "functions.llama_model_load_from_file(b'absent.gguf', functions.llama_model_default_params())\n"
        "print('absent.gguf' in last_errors())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True", "Llama", "True", "True"]
    assert not done.stderr, "the package, which takes the log, keeps it"


def test_another_version_is_warned_about() -> None:
    program = (
        "import llama_cpp, logging\n"
        "logging.basicConfig(format='%(message)s')\n"
        "llama_cpp.__version__ = '0.0.1'\n"
        "from engine.llama.lib import library\n"
        "library()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "llama-cpp-python 0.0.1 is installed, but" in done.stderr
