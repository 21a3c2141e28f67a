"""Steps compiled for TPUs that are not here; limits of chips; what a program holds."""

import importlib.util

import pytest

from roxxel import hardware, main
from roxxel.config import abstract, arguments, check_topology, resolve
from roxxel.data.steps import Span
from roxxel.errors import ConfigError
from roxxel.topology import collectives, compiling, costs, devices, hlo, roofline


@pytest.mark.parametrize(
    ("device_kind", "name"),
    [
        ("TPU v4", "v4"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),  # what JAX calls a v5p
        ("TPU v5p", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
    ],
)
def test_a_device_kind_names_a_chip(device_kind, name):
    assert hardware.chip(device_kind) is hardware.CHIPS[name]
    assert hardware.peak_flops(device_kind) == hardware.CHIPS[name].peak_flops


@pytest.mark.parametrize(
    "device_kind",
    ["cpu", "TPU v7x", "TPU v55", "NVIDIA GeForce RTX 4090", "", "NVIDIA H100 NVL"],
)
def test_the_peak_of_an_unknown_device_is_not_guessed(device_kind):
    assert hardware.peak_flops(device_kind) is None


# -- the text of a program -------------------------------------------------------------

# Eight chips in two slices. A loop of six trips holds a product, a gather whose pieces
# share channel 1 (one of them in an inner loop), and a ring of four steps by two.
HLO = """\
HloModule step, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(128)} parameter(0)
  %b = f32[]{:T(128)} parameter(1)
  ROOT %add.9 = f32[] add(%a, %b)
}

%piece (p: bf16[64,128]) -> bf16[512,128] {
  %p = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %all-gather.2 = bf16[512,128]{1,0} all-gather(%p), channel_id=1, \
replica_groups=mesh['x'=8] {'x'}, dimensions={0}, \
frontend_attributes={chain_id="4"}
}

%piece.1 (p: bf16[64,128]) -> bf16[512,128] {
  %p = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %all-gather.3 = bf16[512,128]{1,0} all-gather(%p), channel_id=1, \
replica_groups=mesh['x'=8] {'x'}, dimensions={0}, \
frontend_attributes={chain_id="4"}
}

%inner_body (s: (s32[], bf16[64,128])) -> (s32[], bf16[64,128]) {
  %s = (s32[], bf16[64,128]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %w = bf16[64,128]{1,0} get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %carried = bf16[512,128]{1,0:T(8,128)S(1)} fusion(%w), kind=kCustom, calls=%piece.1
  ROOT %out = (s32[], bf16[64,128]{1,0}) tuple(%next, %w)
}

%inner_cond (s: (s32[], bf16[64,128])) -> pred[] {
  %s = (s32[], bf16[64,128]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(5)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%windowed_dot_general_body_rs.1 (s: (u32[], f32[64,128])) -> (u32[], f32[64,128]) {
  %s = (u32[], f32[64,128]{1,0}) parameter(0)
  %i = u32[] get-tuple-element(%s), index=0
  %acc = f32[64,128]{1,0} get-tuple-element(%s), index=1
  %one = u32[] constant(1)
  %half = u32[] add(%i, %one)
  %next = u32[] add(%half, %one)
  %collective-permute-start.1 = (f32[64,128]{1,0}, f32[64,128]{1,0}, u32[], u32[]) \
collective-permute-start(%acc), channel_id=7, source_target_pairs={{0,1},{1,0}}
  %collective-permute-done.1 = f32[64,128]{1,0} \
collective-permute-done(%collective-permute-start.1)
  ROOT %out = (u32[], f32[64,128]{1,0}) tuple(%next, %collective-permute-done.1)
}

%windowed_dot_general_cond_rs.1 (s: (u32[], f32[64,128])) -> pred[] {
  %s = (u32[], f32[64,128]{1,0}) parameter(0)
  %i = u32[] get-tuple-element(%s), index=0
  %n = u32[] constant(8)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%part (stack: bf16[6,64,128], i: s32[]) -> bf16[1,64,128] {
  %stack = bf16[6,64,128]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %ds = bf16[1,64,128]{2,1,0} dynamic-slice(%stack, %i, %zero, %zero), \
dynamic_slice_sizes={1,64,128}
}

%body (s: (s32[], bf16[6,64,128], bf16[32,512])) -> (s32[], bf16[6,64,128], \
bf16[32,512]) {
  %s = (s32[], bf16[6,64,128]{2,1,0}, bf16[32,512]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %i.1 = s32[]{:T(128)S(6)} copy(%i)
  %stack = bf16[6,64,128]{2,1,0} get-tuple-element(%s), index=1
  %x = bf16[32,512]{1,0} get-tuple-element(%s), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%i.1, %one)
  %slice = bf16[1,64,128]{2,1,0:T(8,128)S(1)} fusion(%stack, %i.1), kind=kLoop, \
calls=%part
  %w = bf16[64,128]{1,0:T(8,128)S(1)} bitcast(%slice)
  %async-collective-start = bf16[512,128]{1,0:T(8,128)S(1)} fusion(%w), \
kind=kCustom, calls=%piece
  %zero = s32[] constant(0)
  %init = (s32[], bf16[64,128]{1,0}) tuple(%zero, %w)
  %while.1 = (s32[], bf16[64,128]{1,0}) while(%init), condition=%inner_cond, \
body=%inner_body
  %convolution.1 = f32[32,128]{1,0} convolution(%x, %async-collective-start), \
dim_labels=bf_io->bf
  ROOT %out = (s32[], bf16[6,64,128]{2,1,0}, bf16[32,512]{1,0}) \
tuple(%next, %stack, %x)
}

%cond (s: (s32[], bf16[6,64,128], bf16[32,512])) -> pred[] {
  %s = (s32[], bf16[6,64,128]{2,1,0}, bf16[32,512]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(6)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%all-reduce-scatter.1 (g: f32[512,128]) -> f32[128,128] {
  %g = f32[512,128]{1,0} parameter(0)
  %all-reduce.5 = f32[512,128]{1,0} all-reduce(%g), channel_id=3, \
replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%sum
  %z = s32[] constant(0)
  ROOT %ds.1 = f32[128,128]{1,0} dynamic-slice(%all-reduce.5, %z, %z), \
dynamic_slice_sizes={128,128}
}

ENTRY %main (p0: bf16[6,64,128], p1: bf16[32,512], p2: f32[512,128]) -> f32[128,128] {
  %p0 = bf16[6,64,128]{2,1,0} parameter(0)
  %p1 = bf16[32,512]{1,0} parameter(1)
  %p2 = f32[512,128]{1,0} parameter(2)
  %zero = s32[] constant(0)
  %init = (s32[], bf16[6,64,128]{2,1,0}, bf16[32,512]{1,0}) tuple(%zero, %p0, %p1)
  %while.2 = (s32[], bf16[6,64,128]{2,1,0}, bf16[32,512]{1,0}) while(%init), \
condition=%cond, body=%body
  %uzero = u32[] constant(0)
  %acc = f32[64,128]{1,0} slice(%p2), slice={[0:64], [0:128]}
  %ring = (u32[], f32[64,128]{1,0}) tuple(%uzero, %acc)
  %while.3 = (u32[], f32[64,128]{1,0}) while(%ring), \
condition=%windowed_dot_general_cond_rs.1, body=%windowed_dot_general_body_rs.1
  %all-reduce.6 = f32[512,128]{1,0} all-reduce(%p2), channel_id=4, \
replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%sum
  ROOT %fusion.1 = f32[128,128]{1,0} fusion(%all-reduce.6), kind=kCustom, \
calls=%all-reduce-scatter.1
}
"""
SLICES = [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.fixture(scope="module")
def program():
    return hlo.parse(HLO)


def test_runs_are_counted_through_loops_and_fusions(program):
    assert program.entry == "main"
    assert program.unknown_loops == 0
    assert program.runs["body"] == 6
    assert program.runs["inner_body"] == 6 * 5
    assert (program.runs["piece"], program.runs["piece.1"]) == (6, 6 * 5)
    # The counter goes from 0 to 8 by two.
    assert program.runs["windowed_dot_general_body_rs.1"] == 4


def test_trips_that_a_loop_tells_are_taken():
    told = HLO.replace(
        "condition=%cond, body=%body",
        'condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"9"}}',
    )
    assert hlo.parse(told).runs["body"] == 9


def test_a_kernel_whose_attributes_go_over_lines_ends_no_computation():
    at = HLO.index("  ROOT", HLO.index("%inner_body "))
    kernel = (
        "  %kernel = f32[8]{0} custom-call(%w), frontend_attributes={metadata={\n"
        '"xprof_metadata":"{}"\n'
        '}}, metadata={op_name="splash"}\n'
    )
    program = hlo.parse(HLO[:at] + kernel + HLO[at:])
    assert program.computations["inner_body"].keys() >= {"kernel", "out"}
    assert (program.runs["inner_body"], program.unknown_loops) == (6 * 5, 0)


def test_a_loop_that_does_not_tell_its_trips_counts_once_and_is_named():
    untold = HLO.replace("direction=LT", "direction=NE")
    program = hlo.parse(untold)
    assert (program.runs["body"], program.unknown_loops) == (1, 3)


def test_each_collective_is_counted_once(program):
    found = collectives.find(program, 8)
    assert sorted((o.kind, o.in_ring, o.runs, o.operand_bytes) for o in found) == [
        ("all-gather", False, 6, 64 * 128 * 2),  # in two pieces of one channel
        ("all-reduce", False, 1, 512 * 128 * 4),
        ("reduce-scatter", False, 1, 512 * 128 * 4),
        ("reduce-scatter", True, 4, 64 * 128 * 4),  # steps of a ring
    ]


def test_the_last_trip_taken_out_of_a_loop_counts_beside_the_loop():
    last = """\
  %last = bf16[64,128]{1,0} slice(%p1), slice={[0:64], [0:128]}
  %all-gather.9 = bf16[512,128]{1,0} all-gather(%last), channel_id=1, \
replica_groups=mesh['x'=8] {'x'}, dimensions={0}
  %uzero = u32[]"""
    found = collectives.find(hlo.parse(HLO.replace("  %uzero = u32[]", last)), 8)
    gathers = [one for one in found if one.kind == "all-gather"]
    assert sorted(one.runs for one in gathers) == [1, 6]


def test_bytes_that_a_chip_sends(program):
    sent = {
        (one.kind, one.in_ring): one.sent_bytes(SLICES)
        for one in collectives.find(program, 8)
    }
    part, whole = 64 * 128 * 2, 512 * 128 * 4
    # Half of all eight parts comes from the other slice, a fourth of that a chip.
    assert sent["all-gather", False] == (6 * 8 * part * 3 / 4, 6 * 8 * part / 4 / 2)
    # Groups of one chip in each slice: nothing goes inside a slice.
    assert sent["all-reduce", False] == (0, 2 * whole / 2)
    assert sent["reduce-scatter", False] == (whole * 3 / 4, 0)
    assert sent["reduce-scatter", True] == (4 * 64 * 128 * 4, 0)


def test_work_is_counted_as_often_as_it_runs(program):
    assert costs.flops(program) == 6 * 2 * 32 * 512 * 128
    # A trip reads a slice of the stack, x, and writes the product; the gathered
    # weights stay in fast memory.
    trip = 64 * 128 * 2 + 32 * 512 * 2 + 32 * 128 * 4
    inner = 5 * 64 * 128 * 2
    ring = 4 * 2 * 64 * 128 * 4
    outside = 2 * 64 * 128 * 4 + 2 * 512 * 128 * 4 + (512 + 128) * 128 * 4
    assert costs.hbm_bytes(program) == 6 * (trip + inner) + ring + outside


@pytest.mark.parametrize(
    ("line", "flops"),
    [
        # A product over a batch of 4, as XLA for TPU writes it.
        (
            "%r = f32[4,64,32]{2,1,0} convolution(%a, %b), window={size=4 stride=3 "
            "lhs_dilate=4}, dim_labels=0bf_0io->0bf",
            4 * 2 * 64 * 16 * 32,
        ),
        (
            "%r = f32[4,64,32]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, "
            "lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}",
            4 * 2 * 64 * 16 * 32,
        ),
    ],
)
def test_products_over_a_batch(line, flops):
    text = (
        "ENTRY %main (a: f32[4,64,16], b: f32[4,16,32]) -> f32[4,64,32] {\n"
        "  %a = f32[4,64,16]{2,1,0} parameter(0)\n"
        "  %b = f32[4,16,32]{2,1,0} parameter(1)\n"
        f"  ROOT {line}\n"
        "}\n"
    )
    assert costs.flops(hlo.parse(text)) == flops


def test_what_goes_between_slices_through_the_hosts():
    text = """\
ENTRY %main (g: f32[4,128]) -> f32[4,128] {
  %g = f32[4,128]{1,0} parameter(0)
  %after-all.1 = token[] after-all()
  %send.1 = (f32[4,128]{1,0}, u32[], token[]) send(%g, %after-all.1), channel_id=2, \
is_host_transfer=true, frontend_attributes={_xla_megascale_reduce_operation="SUM",\
_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %send-done.1 = token[] send-done(%send.1), channel_id=2
  ROOT %all-reduce.1 = f32[4,128]{1,0} all-reduce(%g), channel_id=2, \
replica_groups={{0,1,2,3},{4,5,6,7}}
}
"""
    found = collectives.find(hlo.parse(text), 8)
    assert [(one.kind, one.is_network) for one in found] == [
        ("all-reduce", True),
        ("all-reduce", False),
    ]
    size = 4 * 128 * 4
    assert [one.sent_bytes(SLICES) for one in found] == [(0, size), (1.5 * size, 0)]


def test_text_that_is_no_program():
    with pytest.raises(ValueError, match="no ENTRY"):
        hlo.parse("HloModule nothing")


def test_the_bound_is_the_greatest_of_its_terms(program):
    chip = hardware.TPUS["v5e"]
    compiled = compiling.Compiled(
        mesh={"data": 2, "fsdp": 4},
        span=Span(0, None, 16, 1024),
        fits=True,
        memory=compiling.Memory(arguments=1),
        flops=197e12 / 100,
        hbm_bytes=819e9 / 50,
        found=tuple(collectives.find(program, 8)),
        slices=tuple(SLICES),
    )
    bound = roofline.bound(compiled, chip, flops_per_token=1e6)
    assert bound.terms["compute"] == pytest.approx(0.01)
    assert (bound.by, bound.seconds) == ("HBM", pytest.approx(0.02))
    assert bound.tokens_per_s == pytest.approx(16 * 1024 / 0.02)
    expected = 16 * 1024 * 1e6 / 0.02 / (8 * 197e12)
    assert bound.utilization == pytest.approx(expected)
    near, far = 6 * 8 * 16384 * 0.75 + 262144 * 0.75 + 131072, 6 * 16384 + 262144
    assert bound.terms["links"] == pytest.approx(near / 200e9)
    assert bound.terms["network"] == pytest.approx(far / 3.125e9)


@pytest.mark.parametrize(
    ("text", "arguments", "temporaries", "limit"),
    [
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, "
            "the total memory required for HLO temporaries (33.73G) exceeds available "
            "HBM (15.75G). HLO module: jit_run.",
            2**30,
            int(33.73 * 2**30),
            int(15.75 * 2**30),
        ),
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in "
            "memory space hbm. Used 20.50G of 15.75G hbm. Exceeded hbm capacity by "
            "4.75G.",
            2**30,
            int(20.5 * 2**30) - 2**30,
            int(15.75 * 2**30),
        ),
    ],
)
def test_what_the_compiler_says_of_too_little_memory(
    text, arguments, temporaries, limit
):
    memory = compiling.does_not_fit(RuntimeError(text), arguments)
    assert (memory.arguments, memory.temporaries) == (arguments, temporaries)
    assert memory.limit == limit


def test_any_other_failure_of_the_compiler_goes_on():
    with pytest.raises(RuntimeError, match="INTERNAL"):
        compiling.does_not_fit(RuntimeError("INTERNAL: a check failed"), 1)


# -- names -----------------------------------------------------------------------------


def test_a_topology_by_name():
    one = devices.parse("v5e:4x4")
    assert (one.chip.name, one.grid, one.num_chips) == ("v5e", (4, 4), 16)
    two = devices.parse("V4:2x2x4", num_slices=2)
    assert (str(two), two.num_chips) == ("2 slices of v4:2x2x4", 32)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--topology=v5e"], "expected a chip .v4, v5e, v5p, v6e. and the grid"),
        (["--topology=v9:4x4"], "expected a chip"),
        (["--topology=v5e:0x4"], "at least 1"),
        (["--topology=v5e:4"], "2 or 3 sizes"),
        (["--topology=v5e:2x2x2"], "lie in a plane"),
        (["--topology=v5e:4x4", "--num_slices=0"], "--num_slices=0: expected int"),
        (["--topology=v5e:4x4", "--num_slices=two"], "--num_slices=two: expected int"),
        (["--num_slices=2"], "belongs to --topology"),
        (["--topology=v5e:4x4", "--devices=4"], "exclude each other: it has 16 chips"),
    ],
)
def test_wrong_flags_are_one_line(flags, words):
    line = arguments.parse(["--fdl_config=ssm_small", "--mode=check", *flags])
    with pytest.raises(ConfigError, match=words):
        check_topology.parse(line)


def test_without_the_compiler_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    line = arguments.parse(["--mode=check", "--topology=v5e:2x2"])
    with pytest.raises(ConfigError, match=r"needs libtpu.*: pip install libtpu$"):
        check_topology.parse(line)


# -- compiled, where there is a compiler for TPUs --------------------------------------

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="compiles for TPUs: needs libtpu (pip install libtpu)",
)


def _compiled(text, *flags):
    """The step of the experiment that the flags name, for a topology."""
    line = arguments.parse(["--mode=check", *flags])
    trainer = abstract.evaluate(resolve.experiment(line).config).root
    topology = devices.parse(text)
    return compiling.compile_step(trainer, devices.open_devices(topology))


@needs_libtpu
def test_ssm_small_for_a_tpu(capfd):
    flags = ["--fdl_config=ssm_small", "--mode=check", "--topology=v5e:2x2"]
    mesh = """--fdl.mesh_axes={"data": 1, "fsdp": -1}"""
    assert main.main([*flags, mesh]) == 0
    shown = capfd.readouterr()
    assert "4 v5e, mesh data=1, fsdp=4" in shown.out
    assert "of 16.00 GiB: fits" in shown.out
    assert "all-gather " in shown.out
    assert "reduce-scatter " in shown.out
    assert "MFU" in shown.out
    assert shown.err == ""


@needs_libtpu
def test_without_cut_parameters_chips_only_sum():
    compiled = _compiled(
        "v5e:2x2", "--fdl_config=ssm_tiny", '--fdl.mesh_axes={"data": -1}'
    )
    assert {one.kind for one in compiled.found} == {"all-reduce"}


@needs_libtpu
def test_more_than_the_memory_of_a_chip_is_one_line(capsys):
    flags = ["--fdl_config=ssm_tiny", "--mode=check", "--topology=v5e:2x2"]
    assert main.main([*flags, "--fdl.stream.batch_size=65536"]) == 2
    shown = capsys.readouterr()
    assert "of 15.75 GiB: does not fit" in shown.out
    errors = [line for line in shown.err.splitlines() if "error" in line]
    assert len(errors) == 1
    assert "do not fit the 15.75 GiB of a v5e" in errors[0]
    assert "accumulate=" in errors[0]


@needs_libtpu
@pytest.mark.slow
def test_just_under_the_memory_of_a_chip_fits_and_just_over_does_not():
    def at(batch_size):
        return _compiled(
            "v5e:2x2",
            "--fdl_config=transformer_tiny",
            f"--fdl.stream.batch_size={batch_size}",
        )

    # Not far above: what a program lacks grows in a straight line only nearby.
    much = at(17408)
    assert not much.fits
    rows_that_fit = 17408 * much.memory.limit / much.memory.total
    under, over = (at(int(rows_that_fit * part) // 8 * 8) for part in (0.96, 1.04))
    assert under.fits
    assert 0.9 * much.memory.limit < under.memory.total <= much.memory.limit
    assert not over.fits
    assert over.memory.total > much.memory.limit
