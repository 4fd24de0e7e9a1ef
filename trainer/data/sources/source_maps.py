"""Match label maps to images, and name their classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from trainer.data.images import label_maps
from trainer.data.images.findings import Finding, bad, warning
from trainer.data.images.reading import suffix
from trainer.data.images.recipe import BACKGROUND, MapRecipe
from trainer.data.sources.bids_names import best_match, bids_suffix, entities
from trainer.data.sources.listing import SourceFile, SourceImage
from trainer.data.sources.map_request import MapRequest, labels_of_table, numbered, stated_labels
from trainer.errors import CohortError

# Names of tissues in BIDS derivatives; other labels keep theirs.
TISSUES = {"GM": "grey", "WM": "white", "CSF": "csf"}
_MADE = "Make it, remove the image, or leave it out with --on-error skip."


def tissue_maps(root: Path, image: Path) -> tuple[tuple[tuple[str, Path], ...], tuple[Finding, ...]]:
    """Return (tissue, file) of an image's probability maps in `derivatives/`, and what is doubtful there.

    Maps of another subject, session or run are not its own. Of several pipelines the one with most tissues
    is taken, then the first by name, and named; of several maps in one none is.
    """
    folder = image.relative_to(root).parent.as_posix()
    by_pipeline: dict[str, list[tuple[str, Path]]] = {}
    for code, tissue in TISSUES.items():
        files: dict[str, list[Path]] = {}
        for path in sorted((root / "derivatives").glob(f"*/{folder}/*_label-{code}_probseg.nii*")):
            files.setdefault(path.relative_to(root).parts[1], []).append(path)
        for pipeline, paths in files.items():
            fitting = best_match(image, paths)
            if len(fitting) > 1:
                names = ", ".join(path.name for path in fitting)
                message = (
                    f"has several maps of {tissue} in {pipeline}: {names}. Its tissue volumes were left out."
                )
                return (), (warning("tissue-map", message, "Keep one of them."),)
            by_pipeline.setdefault(pipeline, []).extend((tissue, path) for path in fitting)
    there = sorted((-len(maps), pipeline) for pipeline, maps in by_pipeline.items() if maps)
    if not there:
        return (), ()
    taken, *others = (pipeline for _, pipeline in there)
    findings = []
    if others:
        message = f"has tissue maps of {taken} and of {', '.join(others)}; those of {taken} were taken."
        findings.append(warning("tissue-map", message, "Keep one of them in derivatives/."))
    return tuple(by_pipeline[taken]), tuple(findings)


def of_bids(
    root: Path, images: Sequence[SourceImage], request: MapRequest
) -> tuple[tuple[SourceImage, ...], MapRecipe]:
    """Return the images of a BIDS folder with their maps from `derivatives/`, and the recipe of the maps.

    Raises:
        CohortError: there are no such maps, in several folders, or nothing names their labels.
    """
    folder = _folder(root, images, request)
    candidates = [_files(root, folder, image, request) for image in images]
    if request.kind == "probseg":
        names = _share_names(request, (file for files in candidates for file in files))
        recipe = MapRecipe("probseg", tuple(dict.fromkeys([BACKGROUND, *names.values()])))
        if len(recipe.classes) != len(names) + 1:
            raise CohortError(
                f"--map-labels {request.labels}: gives two maps the same name.",
                cure="Each probability map is a class: give each its own name.",
            )
    else:
        names = {"": ""}
    with_maps = []
    for image, files in zip(images, candidates, strict=True):
        maps: list[SourceFile] = []
        findings: list[Finding] = []
        for label, name in names.items():
            mine = [file for file in files if not label or entities(file).get("label") == label]
            what = f"*_{f'label-{label}_' * bool(label)}{request.kind}.nii.gz in {folder}"
            best = _best_map(image.path, mine, what)
            if isinstance(best, Finding):
                findings.append(best)
            else:
                maps.append(SourceFile(name, best, best.relative_to(root).as_posix()))
        with_maps.append(replace(image, maps=tuple(maps), findings=(*image.findings, *findings)))
    if request.kind == "dseg":
        chosen = [file.path for image in with_maps for file in image.maps]
        recipe = _numbers(root, folder, request, chosen)
    return tuple(with_maps), recipe


def of_table(
    images: Sequence[SourceImage], files: Sequence[SourceFile | None], request: MapRequest, where: str
) -> tuple[tuple[SourceImage, ...], MapRecipe]:
    """Return the images of a table with the label map of each row, and the recipe of the maps.

    Raises:
        CohortError: probability maps were asked for, or nothing names the labels.
    """
    if request.kind != "dseg" or request.folder or request.entities:
        raise CohortError(
            f"{where}: a table names one map of label numbers for each image, in the column 'map'.",
            cure="Use --maps dseg with a table; probability maps are found in BIDS folders.",
        )
    recipe = _numbers(None, where, request, [file.path for file in files if file is not None])
    missing = bad("missing-map", f"has no label map in the column 'map' of {where}.", _MADE)
    return tuple(
        replace(image, findings=(*image.findings, missing)) if file is None else replace(image, maps=(file,))
        for image, file in zip(images, files, strict=True)
    ), recipe


def _best_map(image: Path, files: list[Path], what: str) -> Path | Finding:
    best = best_match(image, files)
    if not best:
        return bad("missing-map", f"has no label map {what}.", _MADE)
    if len(best) > 1:
        names = ", ".join(sorted(file.name for file in best))
        cure = "Choose with --maps KIND:FOLDER:desc-NAME (any entity of the names), or remove one."
        return bad("ambiguous-map", f"has several label maps that fit: {names}.", cure)
    return best[0]


def _folder(root: Path, images: Sequence[SourceImage], request: MapRequest) -> str:
    """Return the folder, below the root, that holds the maps; '.' where they lie beside the images."""
    if request.folder is not None:
        requested = f"derivatives/{request.folder}"
        if not (root / requested).is_dir():
            there = sorted(path.name for path in root.glob("derivatives/*") if path.is_dir())
            raise CohortError(
                f"{root / requested}: there is no such folder of derivatives.",
                cure=f"There are: {', '.join(there) or 'none'}.",
            )
        folders = [requested]
    else:
        folders = [".", *sorted(p.relative_to(root).as_posix() for p in root.glob("derivatives/*"))]
    holding = [folder for folder in folders if any(_files(root, folder, image, request) for image in images)]
    if len(holding) == 1:
        return holding[0]
    pattern = f"sub-*/[ses-*/]anat/*_{request.kind}.nii.gz"
    if not holding:
        where = " or ".join(folder for folder in (folders if request.folder else ("derivatives/*", ".")))
        raise CohortError(
            f"{root}: holds no maps {pattern} in {where} that belong to its images.",
            cure="--maps probseg takes a probability map per tissue, --maps dseg one map of label numbers.",
        )
    raise CohortError(
        f"{root}: holds maps {pattern} in several folders: {', '.join(holding)}.",
        cure=f"Choose one: --maps {request.kind}:{Path(holding[-1]).name}",
    )


def _files(root: Path, folder: str, image: SourceImage, request: MapRequest) -> list[Path]:
    """Return the map files of an image's folder that have the requested kind and entities."""
    anat = root / folder / image.path.relative_to(root).parent
    if not anat.is_dir():
        return []
    wanted = set(request.entities)
    stated = set(_stated(request)) if request.kind == "probseg" else set()
    return [
        path
        for path in sorted(anat.iterdir())
        if suffix(path)
        and not path.name.startswith(".")
        and bids_suffix(path) == request.kind
        and wanted <= set(entities(path).items())
        and (request.kind == "dseg" or "label" in entities(path))
        and (not stated or entities(path)["label"] in stated)
    ]


def _stated(request: MapRequest) -> dict[str, str]:
    """Return the names that `--map-labels` gives to probability maps; a tissue's own name by default."""
    if request.labels is None:
        return {}
    said = stated_labels(request.labels)
    return {label: TISSUES.get(label, name) if name == label else name for label, name in said.items()}


def _share_names(request: MapRequest, files: Iterable[Path]) -> dict[str, str]:
    """Return the name of each label: those stated, else those found, tissues first."""
    stated = _stated(request)
    if stated:
        return stated
    found = sorted({entities(file)["label"] for file in files})
    ordered = [*(code for code in TISSUES if code in found), *(code for code in found if code not in TISSUES)]
    return {code: TISSUES.get(code, code) for code in ordered}


def _numbers(root: Path | None, folder: str, request: MapRequest, files: Sequence[Path]) -> MapRecipe:
    """Return the names of label numbers: those stated, else those of the folder's `dseg.tsv`."""
    if request.labels is not None:
        return numbered(stated_labels(request.labels))
    table = _table(root / folder, files) if root is not None else None
    if table is not None:
        return numbered(labels_of_table(table))
    there = next((labels for labels in map(label_maps.labels_in, files) if labels), None)
    cure = f"Write {root / folder / 'dseg.tsv'} (columns index, name), or say" if root is not None else "Say"
    example = ",".join(map(str, there[:12])) + ",..." * (len(there) > 12) if there else "1=grey,2=white"
    first = " (those of the first map, by number)" if there else ""
    raise CohortError(
        f"{root / folder if root is not None else folder}: the labels of its maps have no names.",
        cure=f"{cure} --map-labels {example}{first}",
    )


def _table(folder: Path, files: Sequence[Path]) -> Path | None:
    """Return `[entities_]dseg.tsv` of a derivatives folder, the most specific one for the maps."""
    names = [set(entities(file).items()) for file in files]
    fitting = [
        path
        for path in folder.glob("*dseg.tsv")
        if all(set(entities(path).items()) <= name for name in names)
    ]
    return max(fitting, key=lambda path: (len(entities(path)), path.name), default=None)
