"""Folders written as a whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_folder(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """An empty temporary folder beside `path` that becomes `path` when the block ends well.

    On an exception it vanishes and `path` stays as it was. Raises FileExistsError when `path` is a file, or
    exists and may not be replaced.
    """
    path = Path(path)
    if path.exists() and (not replace or not path.is_dir()):
        raise FileExistsError(f"{path}: exists already; remove it or name another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        # mkdtemp makes private folders; give the result the usual permissions
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o777 & ~umask)
        if path.exists():
            # a full folder cannot be replaced in one step: move it aside first, so it is never half there
            old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
            path.replace(old / path.name)
            temporary.replace(path)
            shutil.rmtree(old)
        else:
            temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
