"""Reading the data files: JSON and JSON lines, plain or gzip, with errors that name the file."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

_CHUNK = 1 << 22
_LONGEST = 1 << 26
_SPACE = " \t\r\n"
_DAMAGED = (UnicodeDecodeError, gzip.BadGzipFile, zlib.error, EOFError)  # the last three: of a .gz


class DataError(ValueError):
    """A malformed record. `part`: "items", "attributes" or "instructions"; `problem`: what is wrong with it."""

    def __init__(self, part: str, problem: str):
        super().__init__(f"{part}: {problem}")
        self.part, self.problem = part, problem


def text(value: Any, name: str) -> str:
    """`value` if it is a text; else TypeError, which names it."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a text, not {value!r:.40}")
    return value


def texts(value: Any, name: str) -> list[str]:
    """`value` if it is a list of texts; else TypeError, which names it."""
    if not isinstance(value, list):
        raise TypeError(f"{name} must be a list of texts, not {value!r:.40}")
    return [text(part, f"every part of {name}") for part in value]


def _open(path: str | Path) -> IO[str]:
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{str(path)!r} does not exist or is not a file; give the path of a WebShop data file.")
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8")


def _unreadable(path: str | Path, error: Exception) -> ValueError:
    return ValueError(f"{str(path)!r} cannot be read as JSON ({error}); it may be damaged or another kind of file.")


def lines(path: str | Path) -> Iterator[str]:
    """The non-empty lines of a text file."""
    try:
        with _open(path) as file:
            yield from (line for line in file if line.strip())
    except _DAMAGED as error:
        raise _unreadable(path, error) from None


def parse(text: str, path: str | Path) -> Any:
    """One JSON value; `path` is for the error message."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise _unreadable(path, error) from None


def read_object(path: str | Path) -> dict[str, Any]:
    """A file that holds one JSON object.

    Raises:
      FileNotFoundError: there is no such file. ValueError: the file is not JSON, or not an object.
    """
    value = parse("".join(lines(path)), path)
    if not isinstance(value, dict):
        raise ValueError(f"{str(path)!r} must hold a JSON object (product id -> record), not a {type(value).__name__}.")
    return value


def iterate_list(path: str | Path) -> Iterator[Any]:
    """The elements of a file that holds one JSON list of objects, read piece by piece: the largest file has 5 GB.

    Raises:
      FileNotFoundError: there is no such file. ValueError: the file is not JSON, or not a list of objects.
    """
    decoder = json.JSONDecoder()
    try:
        with _open(path) as file:
            text = file.read(_CHUNK).lstrip(_SPACE)
            if not text.startswith("["):
                raise ValueError(f"{str(path)!r} must hold a JSON list of products.")
            position = 1
            while True:
                while position < len(text) and text[position] in _SPACE + ",":
                    position += 1
                if text.startswith("]", position):
                    return
                try:
                    value, position = decoder.raw_decode(text, position)
                except json.JSONDecodeError as error:
                    # Either the text ends within this element, or it is malformed.
                    rest = text[position:]
                    if len(rest) > _LONGEST or not (more := file.read(max(_CHUNK, len(rest)))):
                        raise _unreadable(path, error) from None
                    text, position = rest + more, 0
                    continue
                yield value
    except _DAMAGED as error:
        raise _unreadable(path, error) from None
