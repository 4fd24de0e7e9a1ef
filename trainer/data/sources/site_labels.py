"""Whether the site alone tells the label: a network may then learn scanners in place of a disease."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import scipy  # its parts load when first used

from trainer.data.images.findings import Finding, status, warning
from trainer.data.sources.listing import SITE_COLUMNS, SourceImage

# Said from so much above the AUC of sites at random, where so few of these reach it.
_NOTABLE, _CHANCE, _DRAWN = 0.1, 0.01, 999
# Drawn at once: of a hundred sites and ten labels these take 10 MB.
_BLOCK = 111
# With more labels these are numbers, or names; with more sites each has next to nobody.
_MOST_LABELS, _MOST_SITES = 10, 100
# A message names this many sites.
_MOST_NAMED = 4


def told_by_site(images: Sequence[SourceImage], label_name: str) -> list[Finding]:
    """Return a warning where the site alone tells the label; of subjects, whatever their number of scans.

    Args:
        images: of a cohort; those without site or label, and bad ones, are passed over.
        label_name: what the labels are; nothing is said of a site that is the label.
    """
    if label_name.lower() in SITE_COLUMNS:
        return []
    people: dict[str, list[tuple[str, str]]] = {}
    for image in images:
        if image.site is not None and image.label is not None and status(image.findings) != "bad":
            people.setdefault(image.subject, []).append((image.site, image.label))
    usual = [Counter(each).most_common(1)[0][0] for each in people.values()]
    sites, labels = (sorted({pair[place] for pair in usual}) for place in (0, 1))
    if not (2 <= len(sites) <= _MOST_SITES and 2 <= len(labels) <= _MOST_LABELS):
        return []
    counts = np.zeros((len(sites), len(labels)), np.int64)
    for site, label in usual:
        counts[sites.index(site), labels.index(label)] += 1
    area, random = float(area_of_site(counts[None])[0]), at_random(counts)
    as_high = (1 + (random >= area - 1e-12).sum()) / (1 + len(random))
    if area < _NOTABLE + float(random.mean()) or as_high > _CHANCE:
        return []
    most = np.argsort(-counts.sum(axis=1), kind="stable")[:_MOST_NAMED]
    shown = "; ".join(
        f"{sites[site]}: " + ", ".join(f"{labels[k]} {counts[site, k]}" for k in range(len(labels)))
        for site in most
    )
    message = (
        f"the site alone tells {label_name} with an AUC of {area:.2f} ({shown}): a network may learn it."
    )
    cure = "Leave one site out at a time (cingulum crossval --by site), or balance labels within sites."
    return [warning("site-label", message, cure)]


def area_of_site(counts: np.ndarray) -> np.ndarray:
    """Return the AUC with which a subject's site tells its label, mean over labels: float64 (n,).

    Of each pair, one with the label and one without, by the label's shares at their sites; a pair of one site
    counts half. Small sites tell their own subjects by chance: `at_random` says how well.

    Args:
        counts: (n, sites, labels) subjects, of n cohorts with as many subjects.
    """
    of_site = counts.sum(axis=2)
    areas = []
    for label in range(counts.shape[2]):
        having = counts[:, :, label]
        # Shares compared crosswise, in whole numbers: ties are ties.
        crosswise = having[:, :, None] * of_site[:, None, :]
        higher = 0.5 + 0.5 * np.sign(crosswise - np.swapaxes(crosswise, 1, 2))
        pairs = having[:, :, None] * (of_site - having)[:, None, :]
        areas.append((pairs * higher).sum(axis=(1, 2)) / np.maximum(pairs.sum(axis=(1, 2)), 1))
    return np.asarray(np.mean(areas, axis=0))


def at_random(counts: np.ndarray) -> np.ndarray:
    """Return the AUCs of the same subjects with sites given at random, float64 (_DRAWN,).

    Args:
        counts: (sites, labels) subjects.
    """
    table = scipy.stats.random_table(counts.sum(axis=1), counts.sum(axis=0), seed=0)
    blocks = (np.asarray(table.rvs(_BLOCK, method="boyett"), np.int64) for _ in range(_DRAWN // _BLOCK))
    return np.concatenate([area_of_site(block) for block in blocks])
