"""What is learned, from which data, divided how."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from trainer import batch_environment, byte_sizes
from trainer.config.augment import AugmentConfig
from trainer.config.section import LARGEST_SEED, MAY_CHANGE, MONTH_S, Section, may_change


class SplitConfig(Section):
    """How subjects are divided. No subject is ever in two splits."""

    validation: float = Field(0.15, ge=0, lt=1, description="share of subjects used to choose the best epoch")
    test: float = Field(0.2, ge=0, lt=1, description="share of subjects held out until the end")
    folds: int | None = Field(
        None, ge=2, le=1000, description="k-fold cross-validation: the test split is one of k folds"
    )
    fold: int = Field(0, ge=0, le=999, description="which of the folds is held out, from 0")
    by: Literal["site"] | None = Field(
        None, description="each fold is a site, by name; `folds` is then the number of sites"
    )
    seed: int = Field(0, ge=0, le=LARGEST_SEED, description="seed of the division")
    stratify: tuple[Literal["label", "site", "sex", "age"], ...] = Field(
        ("label", "site", "sex", "age"),
        strict=False,
        description="properties balanced over the splits; `label` comes first, whatever the order",
    )

    @model_validator(mode="after")
    def _leaves_something_to_train_on(self) -> SplitConfig:
        if self.by is not None and self.folds is None:
            raise ValueError(
                "by: site needs folds, the number of sites; `cingulum crossval --by site` counts them"
            )
        held_out = 1 / self.folds if self.folds else self.test
        if self.validation + held_out >= 1:
            raise ValueError("validation and test together leave no subject for training")
        if self.folds is not None and self.fold >= self.folds:
            raise ValueError(
                f"fold {self.fold} does not exist: {self.folds} folds are numbered 0 to {self.folds - 1}"
            )
        return self


_LONGEST_EDGE = 4096


class PatchConfig(Section):
    """Train on parts of the volumes. Evaluation takes whole volumes, patch by patch."""

    size: tuple[int, int, int] = Field(
        strict=False, description="edges in voxels along D, H, W; a single number for all three"
    )
    per_volume: int = Field(1, ge=1, le=1000, description="patches of each training volume in an epoch")
    sampling: Literal["uniform", "foreground", "classes"] = Field(
        "uniform",
        description="centre of a patch: anywhere; at a voxel that is not background; or at a voxel of "
        "a class drawn evenly (needs label maps)",
    )
    foreground_share: float = Field(
        0.5,
        ge=0,
        le=1,
        strict=False,
        description="foreground, classes: share of patches placed this way; the others lie anywhere",
    )
    threshold: float = Field(
        0.0,
        ge=-1e6,
        le=1e6,
        strict=False,
        description="foreground: voxels above it are foreground, if the set has no label maps",
    )

    @field_validator("size", mode="before")
    @classmethod
    def _of_a_cube(cls, size: Any) -> Any:
        return (size,) * 3 if type(size) is int else size

    @field_validator("size")
    @classmethod
    def _has_voxels(cls, size: tuple[int, int, int]) -> tuple[int, int, int]:
        if min(size) < 1:
            raise ValueError("each edge needs at least one voxel")
        if max(size) > _LONGEST_EDGE:
            raise ValueError(f"each edge has at most {_LONGEST_EDGE} voxels")
        return size


class DataConfig(Section):
    """What to train on."""

    shards: Path = Field(
        description="folder of the shard set (cingulum import makes one)",
        strict=False,
        json_schema_extra=MAY_CHANGE,
    )
    classes: tuple[str, ...] | None = Field(
        None,
        strict=False,
        min_length=2,
        description="labels to classify, in this order; default: all labels in the set, sorted",
    )
    covariates: tuple[Literal["age", "sex"], ...] = Field(
        (), strict=False, description="non-image inputs of the network"
    )
    sampling: Literal["natural", "balanced"] = Field(
        "natural",
        description="`balanced`: each class is seen equally often in an epoch, small classes several times",
    )
    shuffle: Literal["auto", "full", "blocks"] = Field(
        "auto",
        description="`full`: a permutation of all samples; `blocks`: of blocks of neighbours, mixed within "
        "windows, without a list of all samples; `auto`: `blocks` from 100,000 samples on",
    )
    split: SplitConfig = SplitConfig()
    leaks: Literal["stop", "warn", "ignore"] = may_change(
        "stop", description="what happens when a subject or an image is in two splits"
    )
    augment: AugmentConfig = AugmentConfig(flip=True, shift=1)
    patch: PatchConfig | None = None
    prefetch: int = may_change(
        2, ge=0, le=1000, description="micro-batches read ahead, where `read_ahead` leaves room"
    )
    read_ahead: int = may_change(
        1024,
        ge=0,
        le=2**24,
        description="memory for batches read ahead, per rank, in MiB; the one in use is not counted",
    )
    evaluation_batch: int = Field(
        4,
        ge=1,
        le=4096,
        description="volumes per rank and forward pass in evaluation; fixed, so that figures do not "
        "depend on the number of ranks",
    )
    read_timeout: float = may_change(
        240.0,
        gt=0,
        le=MONTH_S,
        strict=False,
        description="seconds that one read of stored bytes may take before the run ends and names it; less "
        "than `guards.timeout_s`, which names only the rank",
    )
    reader_threads: int = may_change(2, ge=1, le=256, description="threads that read and decode, per rank")
    page_cache: Literal["auto", "use", "bypass"] = may_change(
        "auto",
        description="`bypass`: read past the system's page cache (O_DIRECT), where the file system can; "
        "`auto`: so where the set lies on a local disk and is larger than the memory that the host has left",
    )
    cache: Literal["none", "memory", "node-local"] = may_change(
        "none",
        description="`memory`: each rank keeps decoded volumes; `node-local`: each host copies the shard set "
        "to its local scratch once",
    )
    cache_bytes: str | None = may_change(
        None,
        description="memory: memory for the ranks of one host together, such as `4 GiB`; default: half of "
        "the memory that the host has left",
    )
    scratch: Path | None = may_change(
        None,
        strict=False,
        description="node-local: folder on each host's own disk; default: `$CINGULUM_SCRATCH`, "
        f"`${batch_environment.SCRATCH}`, `$TMPDIR`, or the system's folder for temporary files",
    )
    scratch_keep: bool = may_change(
        False, description="node-local: leave the copy for the next run; if not, its last user removes it"
    )

    @field_validator("cache_bytes")
    @classmethod
    def _is_a_size(cls, text: str | None) -> str | None:
        if text is not None:
            byte_sizes.parse(text)
        return text
