import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Data from elsewhere, which the project does not hold; tests that need it skip where it is absent."""
    named = os.environ.get("REALSIMLOOP_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2].parent / "shared" / "data"
    if not (folder / "real_beam").is_dir():
        pytest.skip(f"no real_beam captures in {folder}; name the data folder in REALSIMLOOP_DATA")
    return folder


@pytest.fixture(scope="session")
def gravity_capture(data_folder: Path) -> Path:
    return data_folder / "real_beam" / "beam_gravity_V2_a.c3d"


@pytest.fixture(scope="session")
def load_capture_path(data_folder: Path) -> Path:
    return data_folder / "real_beam" / "beam_load52_V2_a.c3d"
