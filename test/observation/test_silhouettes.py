"""The predicted silhouette against ray-cast masks."""

from dataclasses import replace

import numpy as np

from realsimloop_ros.body.body import surface_triangles
from realsimloop_ros.observation.masking import ClassicalMasker, intersection_over_union
from realsimloop_ros.observation.silhouettes import silhouette


def test_the_silhouette_is_what_rays_hit(bar, cell_cameras, box_views):
    for camera, mask in zip(cell_cameras, box_views(cell_cameras).masks, strict=True):
        drawn = silhouette(camera, bar.rest_positions, surface_triangles(bar))
        # both take a pixel that is half covered; 3 x 3 rays say that less exactly than 4 x 4 filled pixels
        assert intersection_over_union(drawn, mask) > 0.97


def test_distortion_bends_the_silhouette(bar, cell_cameras):
    camera = replace(cell_cameras[0], distortion=np.array([-0.9, 0.1, 0, 0, 0]))
    triangles = surface_triangles(bar)
    drawn = silhouette(camera, bar.rest_positions, triangles)
    straight = silhouette(camera.rectified, bar.rest_positions, triangles)
    assert (
        intersection_over_union(camera.undistort_mask(drawn), straight) > 0.9
    )  # nearest pixels of a strongly bent image
    assert intersection_over_union(drawn, straight) < 0.97


def test_a_body_behind_the_camera_has_no_silhouette(bar, cell_cameras):
    camera = cell_cameras[0]
    behind = bar.rest_positions + 2 * (camera.centre - np.array([0, 0, 0.4]))
    assert not silhouette(camera, behind, surface_triangles(bar)).any()


def test_a_prediction_off_by_half_a_centimetre_seeds_the_masker(bar, cell_cameras, box_views):
    views = box_views(cell_cameras)
    off = bar.rest_positions - np.array([0.0, 0.0, 0.005])
    for camera, image, mask in zip(views.cameras, views.images, views.masks, strict=True):
        seed = silhouette(camera, off, surface_triangles(bar))
        result = ClassicalMasker().seed(image, seed)
        before, after = intersection_over_union(seed, mask), intersection_over_union(result.mask, mask)
        print(f"{camera.name}: IoU {before:.3f} -> {after:.3f}, quality {result.quality:.2f}")
        assert before < 0.85
        assert after > 0.93
