"""The score of image locality: nodes that have the pod's images already, by `status.images`."""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np

from kedge.scheduler.pipeline.plugin import POINTS_MAX, RelativeScore, ShapeContext, Weights
from kedge.scheduler.state.columns import Bools, Ints
from kedge.scheduler.state.snapshot import Snapshot

IMAGE_LOCALITY = "image-locality"
_BYTES_MIN = 23 * 1024 * 1024
"""Images that are smaller in all get no points."""
_CONTAINER_BYTES_MAX = 1000 * 1024 * 1024
"""Bytes of images for which a node gets all points, for each container."""


class ImageLocalityScore(RelativeScore):
    """The bytes of the pod's images on a node, each scaled by the share of nodes that have the image.

    The scaling keeps pods from gathering on the few nodes that have a rare image. Images of volumes count, and do not
    raise the bytes for which a node gets all points: so kube-scheduler 1.36 computes it.
    """

    weights: ClassVar = {IMAGE_LOCALITY: 1}

    def __init__(self, snapshot: Snapshot, images: tuple[str, ...], containers: int, weight: int) -> None:
        self.weight = weight
        self._snapshot = snapshot
        self._images = images
        self._bytes_max = _CONTAINER_BYTES_MAX * containers
        self._points: Ints = np.zeros(0, np.int64)

    @classmethod
    def for_shape(cls, context: ShapeContext, weights: Weights) -> Self | None:
        requirements = context.shape.requirements
        images = requirements.images
        if not images:
            return None
        return cls(context.snapshot, images + requirements.volume_images, len(images), weights[IMAGE_LOCALITY])

    @property
    def active(self) -> bool:
        return bool(self._snapshot.nodes_with_images)

    def rebuild(self) -> None:
        snapshot = self._snapshot
        found = np.zeros(snapshot.capacity, np.int64)
        for image in self._images if snapshot.nodes_with_images else ():
            rows, sizes = snapshot.nodes_with(image)
            if rows:
                # float64 and then truncated, as kube-scheduler computes it
                share = len(rows) / snapshot.node_count
                found[rows] += (np.asarray(sizes, np.float64) * share).astype(np.int64)
        most = self._bytes_max
        self._points = POINTS_MAX * (np.clip(found, _BYTES_MIN, most) - _BYTES_MIN) // (most - _BYTES_MIN)

    def points(self, feasible: Bools) -> Ints:  # noqa: ARG002 - a node's points do not depend on other nodes' feasibility
        return self._points
