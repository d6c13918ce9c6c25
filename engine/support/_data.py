"""The only place that finds the files shipped with the code: models.toml, templates/, the built-in model."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from engine.support.errors import EngineError

_BUILTIN = "examples/default_model/builtin-q8_0.gguf"


@cache
def root() -> Path:
    """Returns the directory of models.toml and templates/. Raises EngineError if it is missing."""
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "_files", package.parent):
        if (candidate / "models.toml").is_file():
            return candidate
    raise EngineError(
        f"models.toml was found neither in {package / '_files'} nor in {package.parent}; the installation is "
        "incomplete: reinstall llama-engine (pip install --force-reinstall --no-deps llama-engine)."
    )


def models_toml() -> Path:
    """Returns the path of models.toml, the table of the model families."""
    return root() / "models.toml"


def template_source(name: str) -> str | None:
    """Returns the text of `templates/<name>.jinja`, or None if there is no such file. A name never becomes a path."""
    return own_templates().get(name)


@cache
def own_templates() -> Mapping[str, str]:
    """Returns the texts of `templates/` by their names."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted((root() / "templates").glob("*.jinja"))}


def is_own_template(source: str) -> bool:
    """Whether this text is one of `templates/`, as the built-in model's template is."""
    return source in own_templates().values()


def builtin_model() -> Path:
    """Returns the path of the built-in model's GGUF. Raises EngineError if it is missing."""
    path = root() / _BUILTIN
    if not path.is_file():
        raise EngineError(
            f"The built-in model is missing at {path}; reinstall llama-engine, or pass a GGUF's path to Engine.load()."
        )
    return path
