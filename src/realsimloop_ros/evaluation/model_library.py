"""Finds the reduced model of a body: shipped with the package, made before, or made now."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.files import with_markers
from realsimloop_ros.dynamics.reduce import ReductionSettings, reduce_body
from realsimloop_ros.reduction.model import (
    InvalidModelError,
    ReducedBody,
    load_reduced_body,
    save_reduced_body,
)
from realsimloop_ros.resources import share_directory


@dataclass(frozen=True)
class ModelLibrary:
    """Folders that are searched in turn; what is made goes to the last."""

    folders: tuple[Path, ...]

    def find(self, body: Body, settings: ReductionSettings) -> ReducedBody:
        """The reduced model of `body`, whatever its markers; made now, with a progress bar, if there is none."""
        bare = with_markers(body, {})
        for folder in self.folders:
            for path in sorted(folder.glob("*.npz")):
                if _body_hash(path) == bare.content_hash:
                    return replace(load_reduced_body(path), body=body)
        made = make_model(self.folders[-1] / f"{bare.name}_{bare.content_hash[:16]}.npz", bare, settings)
        return replace(made, body=body)


def make_model(path: Path, body: Body, settings: ReductionSettings) -> ReducedBody:
    """Make the reduced model of a body without markers and save it; the snapshots go once it is saved."""
    snapshots = path.with_suffix(".snapshots")
    made = reduce_body(body, settings, snapshots)
    save_reduced_body(path, made)
    shutil.rmtree(snapshots)
    # as it is read back, its basis rounded: the first run then computes what every later one does
    return load_reduced_body(path)


def default_library() -> ModelLibrary:
    """config/models of the package, then the user's cache ($XDG_CACHE_HOME/realsimloop/models)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return ModelLibrary((share_directory() / "config" / "models", cache / "realsimloop" / "models"))


def _body_hash(path: Path) -> str | None:
    """The body's hash a model file names, without reading the model."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return json.loads(str(archive["header"])).get("body_hash")
    except (OSError, ValueError, KeyError, InvalidModelError):
        return None
