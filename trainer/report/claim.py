"""The items of CLAIM, the Checklist for Artificial Intelligence in Medical Imaging, and where each is stated.

Items and numbers are those of the 2024 update (Tejani et al., Radiology: Artificial Intelligence 2024;6(4):
e240300) of the checklist of Mongan, Moy and Kahn (2020;2(2):e200029), in our words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Number, item, and the part of this report that may state it ("" = only the authors can).
_ITEMS: tuple[tuple[int, str, str], ...] = (
    (1, "Title says that it is an AI study, and of which kind", ""),
    (2, "Abstract: structured summary", ""),
    (3, "Background, intended use and clinical role", ""),
    (4, "Aims, objectives, hypotheses", ""),
    (5, "Prospective or retrospective", ""),
    (6, "Goal of the study", ""),
    (7, "Data sources", "data"),
    (8, "Inclusion and exclusion criteria", ""),
    (9, "Preprocessing of the images", "preprocessing"),
    (10, "Selection of subsets of the data", ""),
    (11, "De-identification", ""),
    (12, "Missing data", ""),
    (13, "Acquisition protocol", ""),
    (14, "How the reference standard was obtained", ""),
    (15, "Why this reference standard", ""),
    (16, "Source of the annotations; annotators", ""),
    (17, "Annotation of the test set", ""),
    (18, "Inter- and intra-rater variability", ""),
    (19, "How data were assigned to partitions", "partitions"),
    (20, "Level at which partitions are disjoint", "partitions"),
    (21, "Intended sample size", ""),
    (22, "Description of the model", "network"),
    (23, "Software, libraries, versions", "software"),
    (24, "Initial values of the parameters", "network"),
    (25, "Training: augmentation, hyperparameters, number of models", "training"),
    (26, "How the final model was chosen", "selection"),
    (27, "Ensembles", "ensembles"),
    (28, "Metrics of performance", "metrics"),
    (29, "Uncertainty and significance", "metrics"),
    (30, "Robustness or sensitivity analysis", "subgroups"),
    (31, "Explainability", "attributions"),
    (32, "Evaluation on internal data", "performance"),
    (33, "Testing on external data", ""),
    (34, "Registration of a clinical trial", ""),
    (35, "Numbers included and excluded", ""),
    (36, "Demographic and clinical characteristics of each partition", "cohort"),
    (37, "Performance and its uncertainty", "performance"),
    (38, "Diagnostic performance and its precision", "performance"),
    (39, "Analysis of failures", "failures"),
    (40, "Limitations of the study", ""),
    (41, "Implications for practice", ""),
    (42, "Protocol or further technical details", "record"),
    (43, "Availability of software, model and data", ""),
    (44, "Funding and its role", ""),
)


@dataclass(frozen=True)
class Item:
    """One item of the checklist.

    Attributes:
        number: in the 2024 update.
        words: what it asks for.
        place: id of the element of the page that states it, or "" where the authors must.
        where: what that part of the page is called.
    """

    number: int
    words: str
    place: str
    where: str


def checklist(stated: Mapping[str, tuple[str, str]]) -> list[Item]:
    """Return all items.

    Args:
        stated: for each part of the report that is there, the id of its element and its heading.
    """
    return [Item(number, words, *stated.get(part, ("", ""))) for number, words, part in _ITEMS]
