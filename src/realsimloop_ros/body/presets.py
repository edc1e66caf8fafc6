"""Material presets: what is known of a silicone before it is measured, as ranges (config/materials.yaml)."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class InvalidPresetError(ValueError):
    """A preset file that cannot be read, or a preset it does not hold; the text names file and field."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PriorRange(_Strict):
    """A quantity that is only known within bounds; `centre` is where an estimate starts."""

    low: float = Field(gt=0)
    centre: float = Field(gt=0)
    high: float = Field(gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.centre < self.high:
            raise ValueError(
                f"low {self.low}, centre {self.centre}, high {self.high}: expected low < centre < high"
            )
        return self


class PoissonRange(PriorRange):
    """A range of Poisson's ratio, within what the material laws take."""

    high: float = Field(gt=0, le=0.499)


class MaterialPreset(_Strict):
    """A prior, never a truth.

    youngs_modulus: Pa; poisson_ratio; density: kg/m^3; source: where the numbers come from.
    """

    youngs_modulus: PriorRange
    poisson_ratio: PoissonRange
    density: float = Field(gt=0)
    source: str = Field(min_length=1)


class _PresetFile(_Strict):
    presets: dict[str, MaterialPreset] = Field(min_length=1)


def load_presets(path: Path) -> dict[str, MaterialPreset]:
    """All presets of a file by name. Raises InvalidPresetError naming file and field."""
    path = Path(path)
    if not path.is_file():
        raise InvalidPresetError(f"material presets: {path} does not exist")
    try:
        return _PresetFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))).presets
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidPresetError(f"{path}: not valid YAML ({error})") from error
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']} (got {e['input']!r})" for e in error.errors()
        ]
        raise InvalidPresetError(f"{path}: " + "; ".join(lines)) from error


def preset_named(path: Path, name: str) -> MaterialPreset:
    """One preset of a file. Raises InvalidPresetError listing the names there are."""
    presets = load_presets(path)
    if name not in presets:
        raise InvalidPresetError(f"{path}: no preset {name!r}, expected one of {sorted(presets)}")
    return presets[name]
