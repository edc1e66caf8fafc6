"""Material presets: the shipped file, and what is said about wrong ones."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from realsimloop_ros.body.presets import InvalidPresetError, load_presets, preset_named

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "config" / "materials.yaml"
DATA = Path(os.environ.get("REALSIMLOOP_DATA", ROOT.parent / "shared" / "data"))

TENSILE_FILES = {
    "dragon_skin_10": "Dragon_Skin_10_MEDIUM.csv",
    "dragon_skin_20": "Dragon_Skin_20.csv",
    "dragon_skin_30": "Dragon_Skin_30.csv",
    "ecoflex_00_30": "Ecoflex_00-30.csv",
    "ecoflex_00_50": "Ecoflex_00-50.csv",
}


def test_the_shipped_presets_are_priors_with_a_factor_of_two_or_more() -> None:
    presets = load_presets(SHIPPED)
    assert set(presets) == set(TENSILE_FILES)
    for preset in presets.values():
        youngs_modulus = preset.youngs_modulus
        assert youngs_modulus.high >= 2.0 * youngs_modulus.low
        # the centre is the geometric mean, written with three digits
        mean = np.sqrt(youngs_modulus.low * youngs_modulus.high)
        assert youngs_modulus.centre == pytest.approx(mean, rel=5e-3)
        assert 1000.0 < preset.density < 1200.0 and len(preset.source) > 20


def test_published_fits_lie_within_the_presets() -> None:
    presets = load_presets(SHIPPED)
    for name, value in (("dragon_skin_10", 0.24e6), ("dragon_skin_10", 263.8e3), ("dragon_skin_30", 0.74e6)):
        assert presets[name].youngs_modulus.low <= value <= presets[name].youngs_modulus.high


@pytest.mark.parametrize("name", TENSILE_FILES)
def test_the_low_end_is_the_tensile_fit(name: str) -> None:
    path = DATA / "silicone_tensile" / TENSILE_FILES[name]
    if not path.is_file():
        pytest.skip(f"{path} is absent; set REALSIMLOOP_DATA to the folder that holds silicone_tensile")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("Time (s)")) + 1
    table = np.array(
        [[float(entry) for entry in line.split(";")[3:5]] for line in lines[start:] if line[0] != ";"]
    )
    strain, stress = table[:, 0], 1e6 * table[:, 1]
    used = (strain > 0.0) & (strain <= 0.1)
    stretch = 1.0 + strain[used]
    shape = stretch - stretch**-2  # incompressible neo-Hooke: stress = mu (stretch - stretch^-2)
    fitted = 3.0 * float(shape @ stress[used] / (shape @ shape))
    # a handful of samples, and the share of them that lies below the strain limit is a matter of choice
    assert load_presets(SHIPPED)[name].youngs_modulus.low == pytest.approx(fitted, rel=0.05)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("presets: {}", ["presets", "at least 1"]),
        ("presets: [", ["not valid YAML"]),
        ("", ["file"]),
        (
            "presets: {a: {youngs_modulus: {low: 2, centre: 1, high: 3}, "
            "poisson_ratio: {low: 0.4, centre: 0.45, high: 0.49}, density: 1, source: x}}",
            ["presets.a.youngs_modulus", "low < centre < high"],
        ),
        (
            "presets: {a: {youngs_modulus: {low: 1, centre: 2, high: 3}, "
            "poisson_ratio: {low: 0.4, centre: 0.45, high: 0.5}, density: 0, source: x}}",
            ["presets.a.poisson_ratio.high", "0.499", "presets.a.density"],
        ),
    ],
)
def test_a_wrong_file_is_refused_by_field(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "materials.yaml"
    path.write_text(text)
    with pytest.raises(InvalidPresetError) as caught:
        load_presets(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_an_unknown_preset_lists_the_known_ones(tmp_path: Path) -> None:
    assert preset_named(SHIPPED, "ecoflex_00_30").density == 1070.0
    with pytest.raises(InvalidPresetError, match=r"'jelly', expected one of \['dragon_skin_10'"):
        preset_named(SHIPPED, "jelly")
    with pytest.raises(InvalidPresetError, match="does not exist"):
        load_presets(tmp_path / "gone.yaml")
