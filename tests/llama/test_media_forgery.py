"""No text becomes a picture, a sound or a token of a projector: every marker of every projector in every field, through
a real projector of each kind. A sample of `benchmarks/forgery.py --projectors`; needs llama.cpp's templates like
tests/formats/template/test_template_forgery.py.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from attacks.forging import MEDIA_MARKERS, OURS, SOURCES
from attacks.media_forging import SeeingProbe, seeing
from files.projector_files import KINDS

pytestmark = pytest.mark.skipif(not SOURCES, reason="set LLAMA_CPP_MODELS to llama.cpp's models folder")
TEMPLATES = 1
TOKEN = "<|vision_start|>"


@pytest.mark.parametrize("name", KINDS)
def test_pictures_only_where_a_part_stands(
    name: str, tmp_path: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    chance, texts, tried = random.Random(name), 0, 0
    with seeing(tmp_path, name) as llm:
        for source in (OURS[-1], *chance.sample([*SOURCES, *OURS], TEMPLATES)):
            probe = SeeingProbe(source, llm, name)
            if probe.takes is None:
                continue
            tried += 1
            assert {what: probe.kinds[0][what] for what in probe.expected} == probe.expected
            for found in (
                *(probe.whole(kind, MEDIA_MARKERS) for kind in probe.kinds),
                *(probe.filled(kind, parts) for kind, parts in probe.completions(MEDIA_MARKERS)),
            ):
                assert (found.forged, found.lost, found.same_bytes) == (0, 0, True), f"{probe.name}: {found.about}"
                texts += found.texts
            assert probe.whole(0, [TOKEN], guard=False).forged > 0, "the measure can fail"
    assert tried
    record_testsuite_property(f"forgery of media, {name}", f"forged 0 of {texts}")
