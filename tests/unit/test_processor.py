"""Whether TensorFlow is told to use oneDNN, by flags of processors that are not this one."""

from __future__ import annotations

import pytest

from trainer import processor
from trainer.run_folder import machine

SANDY_BRIDGE = {"sse4_1", "avx"}
HASWELL = {*SANDY_BRIDGE, "avx2", "fma"}
ZEN_3 = {*HASWELL, "vaes", "vpclmulqdq"}
ALDER_LAKE = {*HASWELL, "avx_vnni"}
SKYLAKE_X = {*HASWELL, "avx512f", "avx512bw", "avx512vl", "avx512dq"}
CASCADE_LAKE = {*SKYLAKE_X, "avx512_vnni"}
ZEN_4 = {*CASCADE_LAKE, "avx512_bf16"}
SAPPHIRE_RAPIDS = {*ZEN_4, "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "avx_vnni"}


@pytest.mark.parametrize(
    ("flags", "instructions", "by_default", "faster"),
    [
        (set(), None, False, False),  # no x86-64, or no /proc/cpuinfo
        (SANDY_BRIDGE, "AVX", False, True),
        (HASWELL, "AVX2", False, True),
        (ZEN_3, "AVX2", False, True),
        (ALDER_LAKE, "AVX2 VNNI", True, True),
        (SKYLAKE_X, "AVX-512", False, True),
        (CASCADE_LAKE, "AVX-512 VNNI", True, True),
        (ZEN_4, "AVX-512 BF16", True, True),
        (SAPPHIRE_RAPIDS, "AMX", True, True),
    ],
)
def test_onednn_is_switched_on_wherever_it_is_faster_and_tensorflow_leaves_it_off(
    flags, instructions, by_default, faster
):
    assert processor.instruction_set(flags) == instructions
    assert processor.is_on_by_default(flags) == by_default
    assert processor.is_faster(flags) == faster


@pytest.mark.parametrize(
    ("cap", "instructions"),
    [("AVX2", "AVX2"), ("avx512_core", "AVX-512"), ("SSE41", "SSE4.1"), ("DEFAULT", "AMX"), ("typo", "AMX")],
)
def test_instructions_that_the_user_has_ruled_out_do_not_count(cap, instructions):
    assert processor.instruction_set(SAPPHIRE_RAPIDS, cap) == instructions


@pytest.mark.parametrize(
    ("setting", "flags", "used"),
    [
        (None, ZEN_3, False),
        ("1", ZEN_3, True),
        ("true", ZEN_3, True),
        ("0", ZEN_4, False),
        ("False", ZEN_4, False),
        (None, ZEN_4, True),
        ("yes", ZEN_4, True),  # TensorFlow cannot read it, and takes its default
        ("yes", ZEN_3, False),
    ],
)
def test_what_tensorflow_does_follows_its_variable_then_its_default(setting, flags, used):
    assert processor.is_used(flags, setting) == used


@pytest.mark.parametrize(
    ("flags", "before", "after"),
    [
        (ZEN_3, None, "1"),
        (ZEN_3, "0", "0"),
        (SANDY_BRIDGE, None, "1"),
        (ZEN_4, None, "1"),
        (set(), None, None),
    ],
)
def test_the_variable_is_set_unless_the_user_has_set_it(monkeypatch, flags, before, after):
    monkeypatch.setattr(processor, "_flags", lambda: frozenset(flags))
    monkeypatch.delitem(processor.sys.modules, "tensorflow", raising=False)
    environment = {} if before is None else {processor.ONEDNN: before}
    processor.prepare_tensorflow(environment)
    assert environment.get(processor.ONEDNN) == after


@pytest.mark.parametrize(
    ("flags", "setting", "warned"),
    [(ZEN_3, None, True), (ZEN_3, "0", False), (ZEN_4, None, False), (set(), None, False)],
)
def test_a_script_that_imported_tensorflow_first_is_told_what_it_costs(monkeypatch, flags, setting, warned):
    monkeypatch.setattr(processor, "_flags", lambda: frozenset(flags))
    monkeypatch.setitem(processor.sys.modules, "tensorflow", object())
    monkeypatch.setattr(processor, "_imported_too_late", False)
    environment = {} if setting is None else {processor.ONEDNN: setting}
    processor.prepare_tensorflow(environment)
    line = processor.slow_import()
    assert environment.get(processor.ONEDNN) == setting
    assert (line is not None) == warned
    if line:
        assert "Import trainer first, or: export TF_ENABLE_ONEDNN_OPTS=1" in line


def devices(instructions, onednn, gpus=()):
    own = {"model": "AMD EPYC", "instructions": instructions, "onednn": onednn}
    return {"gpus": [*gpus], "processor": own}


def test_hosts_whose_processors_differ_are_named():
    fast, slow = devices("AVX-512 VNNI", True), devices("AVX2", False)
    line = machine.unequal_hosts(["n1", "n1", "n2", "n3", "n4", "n5"], [fast, fast, slow, slow, slow, slow])
    assert line and line.endswith(
        "n1: AMD EPYC, AVX-512 VNNI, with oneDNN; n2, n3, n4 and others: AMD EPYC, AVX2, without oneDNN"
    )
    assert machine.unequal_hosts(["n1", "n2"], [fast, fast]) is None
    gpu = devices("AVX2", True, ["/physical_device:GPU:0"])
    assert machine.unequal_hosts(["n1", "n2"], [fast, gpu]) is None  # its processor does not decide
