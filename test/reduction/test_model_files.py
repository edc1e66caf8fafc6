"""Reduced models on disk: what is written is read, and what is damaged is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from realsimloop_ros.mechanics.elements import lumped_masses, quadrature
from realsimloop_ros.mechanics.laws import StableNeoHookean, Yeoh
from realsimloop_ros.mechanics.material import material_of
from realsimloop_ros.reduction.model import (
    InvalidModelError,
    ReducedBody,
    kinematics,
    load_reduced_body,
    position_tangents,
    positions,
    project_forces,
    save_reduced_body,
    strain_map,
    support_kinematics,
)
from realsimloop_ros.resources import share_directory
from reduced_bodies import REST_POSES, gripped_bar, smooth_reduced_body

REDUCED = replace(
    smooth_reduced_body(gripped_bar(markers={"top": [0.0, 0.0, 0.015]})),
    sample_index=np.array([3, 17, 80, 200]),
    sample_weight=np.array([60.0, 70.0, 50.0, 60.0]),
    card={"subspace": "synthetic", "rms": 1e-4},
)
MODEL = REDUCED.model()
SUPPORT = support_kinematics(MODEL, jnp.asarray(REST_POSES).at[1, 2].add(0.02))
SAMPLED_NODES = quadrature(REDUCED.body).nodes[REDUCED.sample_index]
FRAME = kinematics(MODEL, jnp.asarray(REST_POSES).at[1, 2].add(0.02))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "bar.npz"
    save_reduced_body(path, REDUCED)
    return path


def rewritten(path: Path, **changes: object) -> None:
    with np.load(path, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    for key, value in changes.items():
        if value is None:
            del arrays[key]
        else:
            arrays[key] = np.asarray(value)
    np.savez(path, **arrays)


# -- files -----------------------------------------------------------------------------------------------------


def test_what_is_saved_is_read(saved: Path) -> None:
    found = load_reduced_body(saved)
    assert found.body.content_hash == REDUCED.body.content_hash
    assert found.card == REDUCED.card
    np.testing.assert_array_equal(found.sample_index, REDUCED.sample_index)
    np.testing.assert_array_equal(found.sample_weight, REDUCED.sample_weight)
    # the basis is kept in float32
    np.testing.assert_array_equal(found.basis, REDUCED.basis.astype(np.float32))
    assert found.model().basis.dtype == np.float64


def test_a_file_holds_no_pickle(saved: Path) -> None:
    with np.load(saved, allow_pickle=False) as archive:
        assert all(archive[key].dtype != object for key in archive.files)


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"missing\.npz does not exist; make it with `realsimloop reduce`"):
        load_reduced_body(tmp_path / "missing.npz")


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(byte ^ 0xFF for byte in content[middle : middle + 64])
    path.write_bytes(bytes(content))


def _text(path: Path) -> None:
    path.write_text("no model at all")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _pickled(path: Path) -> None:
    rewritten(path)
    with np.load(path, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    arrays["basis"] = np.array([{"not": "an array"}], dtype=object)
    np.savez(path, **arrays)


@pytest.mark.parametrize("damage", [_truncate, _flip, _text, _empty, _pickled], ids=lambda one: one.__name__)
def test_a_damaged_file_is_named_with_its_remedy(saved: Path, damage: Callable[[Path], None]) -> None:
    damage(saved)
    with pytest.raises(InvalidModelError, match=r"reduced model: .*bar\.npz.*run `realsimloop reduce` anew$"):
        load_reduced_body(saved)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"basis": None}, "basis"),
        ({"header": None}, "header"),
        ({"header": '"just text"'}, "format None, expected 'realsimloop-reduced-1'"),
        ({"header": json.dumps({"format": "other-1"})}, "format 'other-1', expected 'realsimloop-reduced-1'"),
        ({"header": "{"}, "Expecting property name"),
        ({"body_rest_positions": None}, "rest_positions"),
        ({"basis": np.zeros((5, 3, 2))}, r"basis: shape \(5, 3, 2\), expected \(189, 3, R\)"),
        ({"basis": np.full(REDUCED.basis.shape, np.nan)}, "basis: non-finite numbers"),
        ({"basis": np.ones(REDUCED.basis.shape)}, "basis: moves held vertices"),
        ({"sample_weight": [1.0, 1.0, 1.0]}, "one non-negative weight per sample"),
        ({"sample_weight": [1.0, 1.0, 1.0, -1.0]}, "one non-negative weight per sample"),
        ({"sample_weight": [1.0, 1.0, 1.0, np.nan]}, "one non-negative weight per sample"),
        ({"sample_index": [0, 1, 2, 240]}, "sample_index: 240, but the body has 240 samples"),
        ({"sample_index": [0, 1, 2, -1]}, "sample_index: -1, but the body has 240 samples"),
    ],
)
def test_contents_that_fit_no_model_are_named(saved: Path, changes: dict, words: str) -> None:
    rewritten(saved, **changes)
    with pytest.raises(InvalidModelError, match=words) as caught:
        load_reduced_body(saved)
    assert "bar.npz" in str(caught.value)
    assert str(caught.value).count("run `realsimloop reduce` anew") == 1


def test_a_body_that_is_not_the_one_of_the_hash_is_refused(saved: Path) -> None:
    rewritten(saved, body_rest_positions=REDUCED.body.rest_positions * 1.001)
    with pytest.raises(InvalidModelError, match=r"the body does not match its hash: the file is damaged"):
        load_reduced_body(saved)


def test_the_shipped_models_are_valid() -> None:
    paths = sorted((share_directory() / "config" / "models").glob("*.npz"))
    assert paths
    for path in paths:
        found = load_reduced_body(path)
        assert 0.0 < found.card["all_samples"]["rms_percent"] < 1.0


# -- what a model computes -------------------------------------------------------------------------------------


def test_the_law_is_neo_hookean_unless_another_is_given() -> None:
    assert isinstance(MODEL.law, StableNeoHookean)
    assert isinstance(REDUCED.model(Yeoh(0.1)).law, Yeoh)


def test_tangents_and_strains_are_derivatives_of_the_positions() -> None:
    latent = jnp.asarray(np.random.default_rng(0).standard_normal(6) * 1e-2)
    moves = position_tangents(MODEL, FRAME, jnp.zeros(6), jnp.eye(6))
    # positions are affine in z: both sides are the same sum
    whole = FRAME.base + jnp.einsum("nir,r->ni", moves, latent)
    np.testing.assert_allclose(positions(MODEL, FRAME, latent), whole, atol=1e-15)
    strains = strain_map(MODEL, SUPPORT)
    x = np.asarray(positions(MODEL, FRAME, latent))
    F = np.einsum("cai,caj->cij", x[SAMPLED_NODES], np.asarray(MODEL.samples.gradients))
    np.testing.assert_allclose(strains.at(latent), F, atol=1e-13)


def test_projected_forces_do_the_work_of_the_forces() -> None:
    random = np.random.default_rng(1)
    forces, velocity = random.standard_normal((189, 3)), jnp.asarray(random.standard_normal(6))
    moves = np.asarray(position_tangents(MODEL, FRAME, jnp.zeros(6), velocity[:, None]))[..., 0]
    work = float(project_forces(MODEL, SUPPORT, jnp.asarray(forces)) @ velocity)
    assert work == pytest.approx(float((forces * moves).sum()), rel=1e-12)


def test_the_reduced_mass_is_the_total_mass_whatever_the_grips_do() -> None:
    moves = np.asarray(position_tangents(MODEL, FRAME, jnp.zeros(6), jnp.eye(6)))
    masses = lumped_masses(REDUCED.body)
    mass = np.einsum("n,nir,nis->rs", masses, moves, moves)
    material = material_of(REDUCED.body, 1e5, 0.45)
    np.testing.assert_allclose(MODEL.points.matrix(material), mass, atol=1e-12 * masses.sum())
    # rotations keep lengths, and the basis is orthonormal: rounding
    np.testing.assert_allclose(mass, masses.sum() * np.eye(6), atol=1e-12 * masses.sum())


def test_a_basis_of_one_body_is_no_basis_of_another() -> None:
    with pytest.raises(InvalidModelError, match=r"basis: shape"):
        ReducedBody(
            gripped_bar(mesh={**_mesh(), "divisions": [4, 1, 1]}),
            REDUCED.basis,
            REDUCED.sample_index,
            REDUCED.sample_weight,
            {},
        )


def _mesh() -> dict:
    return {"kind": "box", "size": [0.2, 0.03, 0.03], "divisions": [10, 1, 1], "origin": [-0.1, -0.015, -0.015]}
