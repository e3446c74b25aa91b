"""t-digests of many groups at once: quantiles of sums, as plain lists of centroids.

A digest is a list of centroids (mean, weight), sorted by mean (Dunning and Ertl, "Computing Extremely Accurate
Quantiles Using t-Digests", 2019). Up to `EXACT_MAX` centroids it keeps every value, so that quantiles of a window with
few samples are exact; above that, centroids whose middle falls into the same step of the scale function
`k(q) = delta / (2 pi) asin(2q - 1)` become one, which keeps at most `delta / 2 + 1` of them, small at both tails.
All groups are merged in one pass of numpy.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark.telemetry.groups import Indices

EXACT_MAX = 64  # centroids of one digest that are kept as they are
COMPRESSION = 100  # delta: of a digest that has more

Floats = npt.NDArray[np.float64]


class Digests(NamedTuple):
    """Digest `i` has the next `lengths[i]` centroids."""

    lengths: Indices
    means: Floats
    weights: Floats

    @property
    def owners(self) -> Indices:
        """The number of the digest that each centroid belongs to."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


def merge(digests: Digests, groups: Indices, count: int) -> Digests:
    """Returns one digest for each group; `groups` has the group of each digest, 0 to `count` - 1."""
    owners = groups[digests.owners]
    order = np.lexsort((digests.means, owners))
    merged = Digests(np.bincount(owners, minlength=count), digests.means[order], digests.weights[order])
    return compress(merged)


def compress(digests: Digests, *, exact_max: int = EXACT_MAX, compression: int = COMPRESSION) -> Digests:
    """Returns the digests, those of more than `exact_max` centroids with fewer."""
    large = digests.lengths > exact_max
    if not large.any():
        return digests
    owners = digests.owners
    total = np.bincount(owners, digests.weights, len(digests.lengths))
    upto = np.cumsum(digests.weights)
    before = np.concatenate([[0.0], upto])[np.cumsum(digests.lengths) - digests.lengths]
    middle = (upto - before[owners] - digests.weights / 2) / total[owners]
    scale = compression / (2 * np.pi) * (np.arcsin(2 * np.clip(middle, 0, 1) - 1) + np.pi / 2)
    cluster = np.where(large[owners], np.floor(scale), np.arange(len(owners)))
    starts = np.flatnonzero(np.concatenate([[True], (owners[1:] != owners[:-1]) | (cluster[1:] != cluster[:-1])]))
    weights = np.add.reduceat(digests.weights, starts)
    means = np.add.reduceat(digests.weights * digests.means, starts) / weights
    alone = np.diff(np.append(starts, len(owners))) == 1
    means[alone] = digests.means[starts[alone]]  # not one bit off
    return Digests(np.bincount(owners[starts], minlength=len(digests.lengths)), means, weights)


def quantiles(digests: Digests, low: Floats, high: Floats, wanted: tuple[float, ...]) -> list[Floats]:
    """Returns the wanted quantiles of each digest, interpolated between centroids; `low` and `high` are extremes.

    Of digests that hold every value these are the usual ones (Hyndman and Fan's type 7, as numpy's and pandas').
    """
    ends = np.cumsum(digests.lengths)
    begins = ends - digests.lengths
    upto = np.cumsum(digests.weights)
    before = np.concatenate([[0.0], upto])[begins]
    total = upto[ends - 1] - before
    owners = digests.owners
    # The rank of a centroid's middle, from 0 to total - 1, made one rising sequence over all digests.
    rank = upto - before[owners] - (digests.weights + 1) / 2
    step = float(total.max(initial=1.0)) + 1.0
    rising = rank + owners * step
    found = []
    for q in wanted:
        target = q * (total - 1)
        right = np.searchsorted(rising, target + np.arange(len(total)) * step, side="left")
        left = right - 1
        inside_left, inside_right = left >= begins, right < ends
        l_at, r_at = np.where(inside_left, left, begins), np.where(inside_right, right, ends - 1)
        l_rank, l_value = np.where(inside_left, rank[l_at], 0.0), np.where(inside_left, digests.means[l_at], low)
        r_rank = np.where(inside_right, rank[r_at], total - 1)
        r_value = np.where(inside_right, digests.means[r_at], high)
        width = r_rank - l_rank
        part = np.divide(target - l_rank, width, out=np.ones_like(width), where=width > 0)
        found.append(np.clip(l_value + (r_value - l_value) * np.clip(part, 0, 1), low, high))
    return found
