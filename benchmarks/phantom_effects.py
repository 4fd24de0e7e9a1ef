#!/usr/bin/env python3
"""What AD, age and birth do to the volumes of phantoms, beside what is published of people.

.venv/bin/python benchmarks/phantom_effects.py --subjects 400

Volumes are shares of the intracranial volume, as the published ones mostly are. Structures are those of the
average brain, carried along with the tissue: the hippocampal region (the inner half of the medial temporal
region, with the amygdala and the cortex beside it), the CSF within the walls of the ventricles, the cortex of
the temporoparietal region. docs/explanation/phantom.md tells what it printed, and where the targets are from.
"""

from __future__ import annotations

import argparse
import functools
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from scipy import ndimage

from trainer.data.phantom import disease, image, people, template
from trainer.data.phantom.disease import PATTERNS
from trainer.data.phantom.template import REGIONS

# Structure: difference AD - NC in % and as Cohen's d, % per year in NC, spread between NC in % of their mean.
_TARGETS = {
    "hippocampal region": ("-20 to -25", "-1.5 to -2.0", "-0.5 to -2.3", ""),
    "ventricles": ("+40 to +60", "+0.9 to +1.0", "+3 to +4", "50"),
    "temporoparietal cortex": ("-12", "", "", ""),
    "grey matter": ("", "-0.8 to -1.0", "-0.5 to -0.8", ""),
    "white matter": ("", "0 to -0.4", "-0.5", ""),
    "brain (both)": ("", "-0.8 to -1.0", "-0.2 to -0.5", "up to 6"),
    "CSF": ("", "+0.8 to +1.0", "", ""),
}
_INNER = 0.5  # weight of a region that counts as inside


def main() -> None:
    """Measure a cohort of each pattern and print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subjects", type=int, default=400)
    parser.add_argument("--size", type=int, default=64, help="voxels along a side")
    parser.add_argument("--gap", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--disease", nargs="+", default=list(PATTERNS))
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    drawn = [people.draw(given.seed, number, ("AD", "NC")) for number in range(given.subjects)]
    ages = np.array([person.age for person in drawn])
    is_ad = np.array([person.diagnosis == "AD" for person in drawn])
    for pattern in given.disease:
        measure = functools.partial(volumes, given.size, given.seed, given.gap, pattern)
        with ProcessPoolExecutor(given.workers) as pool:
            found = np.array(list(pool.map(measure, drawn, chunksize=8)))
        print(f"\n{pattern}, gap {given.gap:g}, {given.subjects} subjects\n")
        print("| share of the intracranial volume | AD - NC, % | d | in NC, % a year | spread in NC, % |")
        print("| --- | --- | --- | --- | --- |")
        for name, values in zip(_TARGETS, found.T, strict=True):
            cells = [
                f"{got} ({target})" if target else got
                for got, target in zip(effects(values, ages, is_ad), _TARGETS[name], strict=True)
            ]
            print(" | ".join([f"| {name}", *cells]) + " |")


def effects(values: np.ndarray, ages: np.ndarray, is_ad: np.ndarray) -> tuple[str, str, str, str]:
    """Difference in %, d with the pooled spread, % of the mean per year and spread in % within NC."""
    healthy, ill = values[~is_ad], values[is_ad]
    mean = healthy.mean()
    pooled = np.sqrt((healthy.var(ddof=1) + ill.var(ddof=1)) / 2)
    yearly = np.polyfit(ages[~is_ad], healthy, 1)[0]
    return (
        f"{100 * (ill.mean() / mean - 1):+.1f}",
        f"{(ill.mean() - mean) / pooled:+.2f}",
        f"{100 * yearly / mean:+.2f}",
        f"{100 * healthy.std(ddof=1) / mean:.1f}",
    )


def volumes(size: int, seed: int, gap: float, pattern: str, person: people.Person) -> list[float]:
    """Shares of one person's intracranial volume, in the order of the targets."""
    average = _average(size)
    where = image.coordinates(average, person, people.stream(seed, person.number, "anatomy"))
    moved = disease.displacement(average, disease.truth(person, seed, gap, pattern).recession)
    _, there, (grey, white, csf) = image.look_up(average, where, moved)

    def inside(region: str) -> np.ndarray:
        label = (average.regions[REGIONS.index(region)] > _INNER).astype(np.float32)
        return ndimage.map_coordinates(label, there, order=1, mode="nearest")

    parts = (
        (grey + white) * inside("medial_temporal"),
        csf * inside("ventricles"),
        grey * inside("temporoparietal"),
        grey,
        white,
        grey + white,
        csf,
    )
    return [float(part.sum() / (grey + white + csf).sum()) for part in parts]


@functools.lru_cache(maxsize=1)
def _average(size: int) -> template.Template:
    return template.build(size)


if __name__ == "__main__":
    main()
