"""The flags of `python -m roxxel.main`: one table for parsing and for the usage."""

import dataclasses

MODES = ("train", "list", "explain", "diff")
DIRECTIVE_PREFIXES = {"fdl.": "set", "fdl_tag.": "tag"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """One flag.

    `kind` is "text" (last one wins), "switch" (true or false), "list" (repeatable),
    "set" or "fiddler" (directives: applied in the order typed) or "log" (handed to
    absl's own flags).
    """

    kind: str
    value: str = ""
    help: str = ""


OPTIONS: dict[str, Option] = {
    "fdl_config": Option(
        kind="text", value="EXPERIMENT", help="name, dotted function, or name(arg=1)"
    ),
    "fdl_config_file": Option(
        kind="text", value="FILE", help="config.json of a run, instead of --fdl_config"
    ),
    "fdl_set": Option(kind="set", value="PATH=VALUE", help="the same as --fdl.PATH="),
    "fiddler": Option(
        kind="fiddler", value="NAME(args)", help="apply configs.fiddlers.NAME"
    ),
    "fdl_help": Option(kind="switch", help="what the experiment holds, then exit"),
    "workdir": Option(
        kind="text",
        value="DIR",
        help="default runs/<experiment>; resumes what is there",
    ),
    "print_config": Option(kind="switch", help="the resolved configuration, then exit"),
    "mode": Option(
        kind="text", value="MODE", help="train (the default), list, explain or diff"
    ),
    "path": Option(kind="text", value="PATH", help="the part that explain shows"),
    "against": Option(
        kind="text", value="OTHER", help="what diff compares: experiment, run or file"
    ),
    "trust_module": Option(
        kind="list", value="PACKAGE", help="a package that FILE may import from"
    ),
    "trust_config": Option(kind="switch", help="let FILE import from anywhere"),
    "traceback": Option(kind="switch", help="the whole traceback of a mistake"),
    "help": Option(kind="switch", help="this text"),
    "version": Option(kind="switch", help="the version of roxxel"),
    "alsologtostderr": Option(kind="log"),
    "logtostderr": Option(kind="log"),
    "stderrthreshold": Option(kind="log"),
    "verbosity": Option(kind="log"),
}

_DIRECTIVE_ROWS = [
    ("--fdl.PATH=VALUE", "set any value: --fdl.optimizer.lr=1e-3 --fdl.layers[0]=8"),
    ("--fdl_tag.NAME=VALUE", "set every field that carries the tag NAME"),
]
_LEFT_OUT = {"version"}  # keeps the usage within one screen of an error


def usage() -> str:
    """What a command line may hold; at most 18 lines."""
    rows = [("--fdl_config=EXPERIMENT", OPTIONS["fdl_config"].help), *_DIRECTIVE_ROWS]
    for name, option in OPTIONS.items():
        if option.kind == "log" or name == "fdl_config" or name in _LEFT_OUT:
            continue
        flag = f"--{name}={option.value}" if option.value else f"--{name}"
        rows.append((flag, option.help))
    lines = ["usage: python -m roxxel.main --fdl_config=EXPERIMENT [flags]"]
    return "\n".join(lines + [f"  {flag:<24} {text}" for flag, text in rows])
