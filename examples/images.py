"""Pictures: captions of a fixed form for each, and a question about all of them.

python examples/images.py MODEL.gguf MMPROJ.gguf PHOTO.jpg [PHOTO.jpg ...]
"""

import sys
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from engine import Engine, Image


class Caption(BaseModel):
    """What a picture shows."""

    kind: Literal["photo", "drawing", "text"]
    what: Annotated[str, Field(max_length=80)]


def main(model: str, projector: str, *paths: str) -> None:
    pictures = [Image(path) for path in paths]
    with Engine.load(model, projector=projector, n_sequences=2) as llm:
        rows = [[{"role": "user", "content": [picture, "Describe this picture."]}] for picture in pictures]
        answers = llm.generate(rows, response_format=Caption, temperature=0, max_tokens=300)
        for path, picture, answer in zip(paths, pictures, answers, strict=True):
            print(f"{Path(path).name}: {picture.width} x {picture.height}, {answer.parsed}")
        question = {"role": "user", "content": [*pictures, "What do these pictures have in common?"]}
        common = llm.chat([question], temperature=0, max_tokens=200)
        print("together:", common.content)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
