"""RunConfig: a YAML file and `key=value` overrides, made into one typed and checked value.

An unknown key is an error with a suggestion; so is a value of the wrong type or out of range.
`docs/reference/config.md` is made from the descriptions in this package.
"""

from __future__ import annotations

from trainer.config.augment import AugmentConfig
from trainer.config.data import DataConfig, PatchConfig, SplitConfig
from trainer.config.explaining import fields, on_resume, section_of, sections_of
from trainer.config.parsing import dump, load, parse
from trainer.config.placed import FiltersConfig, HybridConfig, HypergraphConfig, PlacedConfig, SpatialConfig
from trainer.config.run import CheckpointConfig, GuardConfig, ModelConfig, RunConfig, TelemetryConfig
from trainer.config.section import Section, StrategySection
from trainer.config.strategy import AutoConfig, OwnStrategyConfig, RingConfig, ServerConfig
from trainer.config.task import TaskConfig
from trainer.config.training import (
    EarlyStoppingConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
    TransferConfig,
    micro_batch,
)

__all__ = [
    "AugmentConfig", "AutoConfig", "CheckpointConfig", "DataConfig", "EarlyStoppingConfig",
    "FiltersConfig", "GuardConfig", "HybridConfig", "HypergraphConfig", "ModelConfig", "OptimizerConfig",
    "OwnStrategyConfig",
    "PatchConfig", "PlacedConfig", "RingConfig", "RunConfig", "ScheduleConfig", "Section", "ServerConfig",
    "SpatialConfig", "SplitConfig", "StrategySection", "TaskConfig", "TelemetryConfig", "TrainConfig",
    "TransferConfig", "dump", "fields", "load", "micro_batch", "on_resume", "parse", "section_of",
    "sections_of",
]  # fmt: skip
