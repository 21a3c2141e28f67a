"""Values from the command line: typed by what they set, without inner quotes."""

import contextlib
import enum
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.typing import DTypeLike
from toy_experiments import basic, parts

import roxxel.logger
from roxxel.config import hints, resolve, signatures, text, values
from roxxel.config.arguments import parse
from roxxel.config.scalars import NOTHING, MismatchError
from roxxel.data import stream
from roxxel.errors import ConfigError
from roxxel.models import ssm
from roxxel.train import trainer

REFUSED = MismatchError
ANY = hints.UNKNOWN
Steps = NewType("Steps", int)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Pair(NamedTuple):
    first: int
    second: float


class Options(TypedDict):
    width: int
    name: str


# (annotation, text, value)
TYPED = [
    # field report F1, 55: scientific notation and its like
    *[(float, t, v) for t, v in [("1e-3", 1e-3), ("1E-3", 1e-3), ("1.e-3", 1e-3)]],
    *[(float, t, v) for t, v in [(".001", 1e-3), ("-1e-3", -1e-3), ("1_000", 1000.0)]],
    *[(float, t, v) for t, v in [("3", 3.0), ("inf", math.inf), ("-inf", -math.inf)]],
    *[(float, t, v) for t, v in [("1/4", 0.25), (" 2 ", 2.0), ("'2'", 2.0)]],
    *[(float, t, REFUSED) for t in ["", "x", "1,2", "None", "true", "1e", "1/0"]],
    *[(int, t, v) for t, v in [("1e3", 1000), ("1000.0", 1000), ("0x10", 16)]],
    *[(int, t, v) for t, v in [("1_000", 1000), ("2**20", 2**20), ("-7", -7)]],
    *[(int, t, v) for t, v in [("4*1024", 4096), ("0b11", 3), ("007", 7), ("'5'", 5)]],
    (int, "123456789012345678901234567890", 123456789012345678901234567890),
    (int, "1e23", 10**23),  # exact, not through a float
    *[
        (int, t, REFUSED)
        for t in ["10.5", "", "x", "nan", "inf", "None", "1,2", "true"]
    ],
    *[(bool, t, True) for t in ["true", "True", "1", "yes", "on"]],
    *[(bool, t, False) for t in ["false", "FALSE", "0", "no", "off"]],
    *[(bool, t, REFUSED) for t in ["2", "", "maybe", "None", "1.0"]],
    # field report F1, 56: text needs no quotes inside of quotes
    *[
        (str, t, t)
        for t in ["foo", "/data/my run/wiki_*.rox", "a=b", "", "123", "None"]
    ],
    *[(str, t, t) for t in ["true", "café", "[1, 2]", "f(x)", "it's", "a'b'c", "1e3"]],
    *[(str, t, "foo bar") for t in ['"foo bar"', "'foo bar'", "foo bar"]],
    (str, "''", ""),
    (str | None, "None", None),
    (str | None, "'None'", "None"),
    (str | None, "null", "null"),
    (int | None, "null", None),
    (int | None, "7", 7),
    (int | None, "x", REFUSED),
    (Path, "~", Path.home()),
    (Path, "~no_such_user/x", Path("~no_such_user/x")),
    (Path, "/data/my run/a=b", Path("/data/my run/a=b")),
    (Path, "", REFUSED),
    (Path | None, "None", None),
    (str | Path, "a/b", "a/b"),
    # field report F1, 57: tuples, lists, dicts
    *[(tuple[float, float], t, (0.9, 0.99)) for t in ["0.9,0.99", "(0.9,0.99)"]],
    *[(tuple[float, float], t, (0.9, 0.99)) for t in ["[0.9, 0.99]", "0.9, 0.99,"]],
    *[(tuple[float, float], t, REFUSED) for t in ["0.9", "1,2,3", "a,b", ""]],
    (tuple[int, ...], "7", (7,)),
    (tuple[int, ...], "()", ()),
    (tuple[int, ...], "1e3,2", (1000, 2)),
    (tuple[str, ...], "a,'b,c',d e", ("a", "b,c", "d e")),
    (tuple[tuple[int, int], ...], "(1,2),(3,4)", ((1, 2), (3, 4))),
    (tuple[tuple[int, int], ...], "((1,2),(3,4))", ((1, 2), (3, 4))),
    (list[int], "[]", []),
    (list[int], "1,2", [1, 2]),
    (list[str | None], "a,None", ["a", None]),
    (Sequence[int], "1,2", (1, 2)),
    (set[str], "{a,b}", {"a", "b"}),
    (frozenset[int], "1,2", frozenset({1, 2})),
    (dict[str, int], "{'a': 1, 'b': 2}", {"a": 1, "b": 2}),
    (dict[str, int], "a=1,b=2", {"a": 1, "b": 2}),
    (dict[str, float], "{a: 1e-3}", {"a": 1e-3}),
    (dict[int, str], "1: x, 2: y:z", {1: "x", 2: "y:z"}),
    (dict[str, int], "{}", {}),
    (dict[str, int], "a", REFUSED),
    (Mapping[str, Any], "a=1,b=x", {"a": 1, "b": "x"}),
    (dict[str, tuple[int, ...]], "a=(1,2),b=3", {"a": (1, 2), "b": (3,)}),
    (Options, "width=1e1,name=3", {"width": 10, "name": "3"}),
    (Pair, "1,2", Pair(1, 2.0)),
    (Pair, "1", REFUSED),
    # named things
    (parts.Mode, "EVAL", parts.Mode.EVAL),
    (parts.Mode, "eval", parts.Mode.EVAL),
    (parts.Mode, "Mode.TRAIN", parts.Mode.TRAIN),
    (parts.Mode, "tset", REFUSED),
    (Level, "2", Level.HIGH),
    (Literal["a", "b", 3], "b", "b"),
    (Literal["a", "b", 3], "3", 3),
    (Literal["a", "b", 3], "c", REFUSED),
    (Literal["a"] | None, "None", None),
    # unions, from the particular to the general
    (int | float, "3", 3),
    (int | float, "3.5", 3.5),
    (int | str, "8", 8),
    (int | str, "'8'", "8"),
    (int | str, "auto", "auto"),
    (bool | int, "1", 1),
    (bool | int, "true", True),
    (int | tuple[int, ...], "3,4", (3, 4)),
    (float | Literal["auto"], "auto", "auto"),
    (int | bool | None, "x", REFUSED),
    # wrappers around a type
    (Annotated[int, "steps"], "1e3", 1000),
    (Steps, "1e3", 1000),
    # no annotation and no value: a literal, or else text
    (ANY, "3", 3),
    (ANY, "3.5", 3.5),
    (ANY, "1e-3", 1e-3),
    (ANY, "true", True),
    (ANY, "None", None),
    (ANY, "(1, 2)", (1, 2)),
    (ANY, "{'a': 1}", {"a": 1}),
    (ANY, "foo bar", "foo bar"),
    (ANY, "'3'", "3"),
    (bytes, "ab", b"ab"),
    (complex, "1+2j", 1 + 2j),
]


@pytest.mark.parametrize(("hint", "given", "expected"), TYPED)
def test_value_has_the_type_of_the_annotation(hint, given, expected):
    if expected is REFUSED:
        with pytest.raises(MismatchError):
            values.parse(given, hint)
        return
    value = values.parse(given, hint)
    assert value == expected
    assert type(value) is type(expected)


def test_nan():
    assert math.isnan(values.parse("nan", float))


# (current value, text, value): no annotation
HELD = [
    (3, "1e3", 1000),
    (3, "2.5", REFUSED),
    (0.5, "3", 3.0),
    ("a", "123", "123"),
    (True, "no", False),
    ((1, 2), "3,4,5", (3, 4, 5)),
    ((0.9, 0.99), "1,2", (1.0, 2.0)),
    ([1], "7", [7]),
    (("a",), "1,2", ("1", "2")),
    ({"a": 1}, "b=2", {"b": 2}),
    (parts.Mode.TRAIN, "EVAL", parts.Mode.EVAL),
    (Path("x"), "y", Path("y")),
    (np.float32(0.5), "1e-3", 1e-3),
    (np.int64(3), "1e3", 1000),
    (jnp.float32, "bfloat16", jnp.bfloat16),
    (jnp.dtype("float32"), "bf16", jnp.dtype("bfloat16")),
    (np.float32, "int32", np.int32),
    (jnp.float32, "floa32", REFUSED),
    (parts.linear, "square", parts.square),
    (parts.linear, "toy_experiments.parts.square", parts.square),
]


@pytest.mark.parametrize(("current", "given", "expected"), HELD)
def test_value_has_the_type_of_what_it_replaces(current, given, expected):
    if expected is REFUSED:
        with pytest.raises(MismatchError):
            values.parse(given, ANY, current)
        return
    value = values.parse(given, ANY, current)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize("hint", [DTypeLike, DTypeLike | None, np.dtype])
@pytest.mark.parametrize("given", ["bfloat16", "bf16", "jnp.bfloat16", "'bfloat16'"])
def test_dtype_by_name(hint, given):
    assert values.parse(given, hint) == jnp.bfloat16
    with pytest.raises(MismatchError, match="a dtype"):
        values.parse("bfloat17", hint)


def test_dtype_keeps_the_form_of_the_current_value():
    assert values.parse("bfloat16", DTypeLike, jnp.float32) is jnp.bfloat16
    assert values.parse("bfloat16", DTypeLike, "float32") == "bfloat16"
    assert isinstance(values.parse("bf16", Any, np.dtype("int8")), np.dtype)


def test_callables_by_short_and_dotted_name():
    import jax

    hint = Callable[[float], float]
    assert values.parse("gelu", hint) is jax.nn.gelu
    assert values.parse("jax.nn.silu", hint, jax.nn.gelu) is jax.nn.silu
    with pytest.raises(MismatchError, match="function") as err:
        values.parse("gleu", hint)
    assert "gelu" in err.value.hint


def test_schedule_is_a_number_or_a_call():
    hint = float | optax.Schedule
    assert values.parse("3e-4", hint) == 3e-4
    node = values.parse("optax.constant_schedule(1e-3)", hint)
    assert isinstance(node, fdl.Config)
    assert fdl.build(node)(0) == 1e-3


OPTAX = types.SimpleNamespace(
    adamw=optax.adamw, schedule=optax.warmup_cosine_decay_schedule, chain=optax.chain
)
ODD_TEXTS = [
    *("x", "3", "", "1e3", "a.b", "f(", "(1,2", "{'a':1}", "None", "jax.nn.gelu"),
    *("optax.adam(1)", "café", "[]", "'", "nan", "1,2", "a=1", "os.system('x')"),
    *("roxxel.Roxxel('x')", "optax", "x(y=)", "()", ".", "a..b", "1.2.3", "[(])"),
]


@pytest.mark.parametrize("module", [OPTAX, trainer, roxxel.logger, ssm, stream])
def test_no_text_makes_a_parser_fail_in_another_way(module):
    """Whatever the annotations of the parts of an experiment say."""
    for target in vars(module).values():
        try:
            parameters = signatures.parameters(target)
        except (TypeError, ValueError):
            continue
        for name, parameter in parameters.items():
            hint = hints.of_field(target, name)
            for given in ODD_TEXTS:
                with contextlib.suppress(MismatchError, ConfigError):
                    values.parse(given, hint, parameter.default)


def test_sets_and_protocols_of_sub_graphs():
    with pytest.raises(MismatchError, match="set"):
        values.parse("optax.adam(1e-3)", set[Any])

    class Protocol(typing.Protocol):
        def write(self) -> None: ...

    assert isinstance(values.parse("jax.nn.gelu", Protocol), fdl.Config)


def test_optimizer_is_a_call_though_optax_makes_it_a_named_tuple():
    hint = optax.GradientTransformation
    held = fdl.Config(optax.sgd, 0.1)
    for current in (NOTHING, held):
        node = values.parse("optax.adam(1e-3)", hint, current)
        assert fdl.get_callable(node) is optax.adam
    assert fdl.get_callable(values.parse("optax.lion", hint, held)) is optax.lion
    with pytest.raises(MismatchError, match="a call such as optax"):
        values.parse("3", hint, held)
    with pytest.raises(MismatchError) as err:
        values.parse("optax.adma(1e-3)", hint, held)
    assert "adam" in err.value.hint


def full(*flags: str) -> resolve.Experiment:
    """The toy experiment after directives."""
    line = parse(["--fdl_config=toy_experiments.basic.full", *flags])
    return resolve.experiment(line)


def test_overrides_reach_what_is_built():
    job = fdl.build(
        full(
            "--fdl.model.name=/data/my run/wiki_*.rox",
            "--fdl.model.layers[-1]=7",
            "--fdl.model.table['k']=0x10",
            "--fdl.model.betas[1]=.5",
            "--fdl.chain[1].x=1e1",
            "--fdl.free.beta=3",
            "--fdl_set=model.size=1_000",
        ).config
    )
    built = job.model.values
    assert built["name"] == "/data/my run/wiki_*.rox"
    assert built["layers"] == [1, 2, 7]
    assert built["table"] == {"k": 16, "other": 2}
    assert built["betas"] == (0.9, 0.5)
    assert [child.x for child in job.chain.parts] == [1, 10]
    assert job.free.options == {"alpha": 0.5, "beta": 3.0}
    assert built["size"] == 1000


def test_defaults_of_a_class_are_never_changed():
    full("--fdl.model.layers[0]=99")
    assert fdl.build(full().config).model.values["layers"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("flag", "read"),
    [
        ("--fdl.parent.child.x=3", lambda parent: parent.child.x),
        ("--fdl.parent.made.x=3", lambda parent: parent.made.x),
        ("--fdl.parent.fixed.y=3", lambda parent: parent.fixed.y),
        ("--fdl.parent.names=a", lambda parent: len(parent.names) + 2),
    ],
)
def test_field_of_a_default_child_is_set(flag, read):
    job = fdl.build(full(flag).config)
    assert read(job.parent) == 3
    assert job.model.values["parent"].child.x == 1  # another parent, untouched


def test_shared_node_moves_every_user():
    job = fdl.build(full("--fdl.evaluation.total=77").config)
    assert job.schedule is job.evaluation
    assert job.schedule.total == 77


def test_replacing_a_shared_node_names_who_keeps_it():
    found = full("--fdl.evaluation=None", "--fdl.steps=3")
    assert found.config.evaluation is None
    assert found.config.schedule is not None
    (note,) = found.notes
    assert "--fdl.evaluation=None" in note
    assert "schedule still holds it" in note


def test_subgraph_by_a_call():
    experiment = full(
        "--fdl.model.parent.child=toy_experiments.basic.child(x=1e1)",
        "--fdl.model.parent.child.label=after",
        "--fdl.schedule=toy_experiments.parts.Schedule(total=5, peak=2)",
    )
    job = fdl.build(experiment.config)
    child = job.model.values["parent"].child
    assert (child.x, child.label) == (10, "after")
    assert (job.schedule.total, job.schedule.peak) == (5, 2.0)


def test_arguments_of_a_function_value_are_bound():
    """A field that holds a function or class becomes a partial of it."""
    config = full("--fdl.model.activation.x=3").config
    assert isinstance(config.model.activation, fdl.Partial)
    assert fdl.build(config).model.values["activation"]() == 3.0


def test_directives_apply_in_the_order_typed():
    dim, fiddler = "--fdl.model.dim=5", "--fiddler=shrink(dim=2)"
    assert full(dim, fiddler).config.model.dim == 2
    assert full(fiddler, dim).config.model.dim == 5
    assert full("--fdl_tag.Width=9", dim, fiddler).config.model.dim == 2
    assert full(fiddler, dim, "--fdl_tag.Width=9").config.model.dim == 9


def test_last_duplicate_wins_and_says_so():
    found = full("--fdl.model.dim=5", "--fdl_set=model.dim=6", "--fdl_tag.Width=7")
    assert found.config.model.dim == 7
    assert found.notes == [
        "--fdl_set=model.dim=6 replaces --fdl.model.dim=5.",
        "--fdl_tag.Width=7 replaces --fdl_set=model.dim=6.",
    ]
    shared = full("--fdl.schedule.total=1", "--fdl.evaluation.total=2")
    assert shared.notes == ["--fdl.evaluation.total=2 replaces --fdl.schedule.total=1."]


def test_replacing_a_node_names_what_is_lost():
    found = full(
        "--fdl.parent.child.x=5", "--fdl.parent=toy_experiments.parts.Parent()"
    )
    assert found.notes[0].endswith("replaces --fdl.parent.child.x=5.")


def test_tags_set_every_field_with_its_own_type():
    found = full("--fdl_tag.Peak=1", "--fdl_tag.basic.Width=1e2")
    assert found.config.schedule.peak == 1.0
    assert type(found.config.schedule.peak) is float
    assert found.config.model.dim == 100


def test_fiddlers_change_or_replace_the_graph():
    assert full("--fiddler=shrink(text='a b')").config.model.name == "a b"
    assert full("--fiddler=toy_experiments.basic.shrink").config.model.dim == 1
    replaced = full("--fdl.steps=3", "--fiddler=replace").config
    assert (replaced.ending, replaced.steps) == ("0", 3)


def test_arguments_of_an_experiment_are_typed():
    line = parse(["--fdl_config=toy_experiments.basic.full(1e1, ending='x', peak=3)"])
    config = resolve.experiment(line).config
    assert (config.model.dim, config.ending, config.schedule.peak) == (10, "x", 3.0)
    line = parse(["--fdl_config=toy_experiments.basic.needs(width=2)"])
    assert resolve.experiment(line).config.steps == 4


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("toy_experiments.single", "only_one"),  # a module with one experiment
        ("toy_experiments.single.make", "only_one"),
        ("toy_experiments.single.only_one", "only_one"),
        ("toy_experiments.same_name", "same_name"),  # module and function
        ("toy_experiments.same_name.same_name", "same_name"),
        ("toy_experiments.same_name.other_name", "other_name"),
        ("toy_experiments.basic.toy", "toy"),
        ("only_one", "only_one"),  # registered by the imports above
    ],
)
def test_ways_to_name_an_experiment(name, found):
    import toy_experiments.single

    assert toy_experiments.single
    assert resolve.from_name(name).name == found


def test_flat_text_shows_defaults_sharing_and_tags():
    shown = text.render(full("--fdl.model.betas=1,2").config)
    assert "model.dim = 8  # tag Width\n" in shown
    assert "model.betas = (1.0, 2.0)\n" in shown
    assert "model.dropout = 0.0  # default\n" in shown
    assert "evaluation = <shared with schedule>\n" in shown
    assert "model.parent.child.x = 1  # default\n" in shown


def test_difference_of_two_graphs():
    before = text.render(full().config)
    after = text.render(full("--fdl.model.dim=9", "--fdl.model.size=3").config)
    assert text.difference(before, after) == [
        "model.dim: 8 -> 9",
        "model.size: None -> 3",
    ]


def test_history_names_the_flag():
    config = full("--fdl.model.dim=9").config
    entry = config.model.__argument_history__["dim"][-1]
    assert entry.location.filename == "--fdl.model.dim=9"


def test_one_bad_annotation_spoils_no_other():
    def function(good: "int", bad: "NoSuchName", also: "list[int]"): ...  # noqa: F821

    assert hints.of_field(function, "good") is int
    assert hints.of_field(function, "bad") is hints.UNKNOWN
    assert hints.of_field(function, "also") == list[int]


def test_overrides_of_a_real_callable_with_jax_types():
    node = fdl.Config(basic.full)
    assert hints.of_field(fdl.get_callable(node), "peak") is float


def test_functools_partial_is_a_node_of_its_own():
    flag = "--fdl.model.activation=functools.partial(jax.nn.gelu,approximate=False)"
    config = resolve.experiment(
        parse(["--fdl_config=toy_experiments.basic.full", flag])
    ).config
    assert isinstance(config.model.activation, fdl.Partial)
    built = fdl.build(config.model).values["activation"]
    assert (built.func, built.keywords) == (jax.nn.gelu, {"approximate": False})


class Sizes(TypedDict):
    width: int


def test_a_typed_dict_takes_its_own_keys_only():
    assert values.parse("{width: 3}", Sizes) == {"width": 3}
    with pytest.raises(MismatchError) as caught:
        values.parse("{widht: 3}", Sizes)
    assert "Did you mean width?" in caught.value.advice


def test_elements_that_are_containers_need_brackets():
    assert values.parse("[1,2],[3]", list[list[int]]) == [[1, 2], [3]]
    with pytest.raises(MismatchError) as caught:
        values.parse("1,2", list[list[int]])
    assert "brackets" in caught.value.advice
