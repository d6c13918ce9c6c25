"""Render then parse, with the declared families, over every template in llama.cpp's tree and every message of
`tests/roundtrips.py`: which come back, and which of them as what follows a prompt (so that the next prompt begins with
this one and its output). Reads `LLAMA_CPP_TEMPLATES`, or the folder given.
"""

import argparse
import sys
import warnings
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from roundtrips import FOLDER  # noqa: E402

from engine.diagnose.roundtrip import MESSAGES, lost  # noqa: E402
from engine.template.chat_template import ChatTemplate  # noqa: E402


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", nargs="?", default=FOLDER, help="the folder of templates")
    arguments.add_argument("--only", default="", help="templates whose name contains this")
    given = arguments.parse_args()
    paths = sorted(path for path in Path(given.folder or ".").glob("*.jinja") if given.only in path.name)
    if not paths:
        sys.exit("There are no templates: name their folder, or set LLAMA_CPP_TEMPLATES.")
    warnings.simplefilter("ignore")
    back = continued = whole = 0
    for path in paths:
        template = ChatTemplate(path.read_text(encoding="utf-8"), "<s>", "</s>")
        unread, unlike = lost(template, continues=False), lost(template)
        back += len(MESSAGES) - len(unread)
        continued += len(MESSAGES) - len(unlike)
        whole += not unlike
        if unlike:
            print(path.stem)
        for name in unlike:
            print(f"    {name}: {'read back alone; ' if name not in unread else ''}{unlike[name]}")
    pairs = len(paths) * len(MESSAGES)
    print(f"\ntemplates {len(paths)}, messages of each {len(MESSAGES)}, pairs {pairs}")
    print(f"render then parse gives the message back: {back} pairs")
    print(f"the same, as what follows a prompt: {continued} pairs; all of a template's: {whole} templates")


if __name__ == "__main__":
    main()
