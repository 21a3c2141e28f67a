"""The flags of `python -m roxxel.main`: one table for parsing and for the usage."""

import dataclasses

# Modes and what each does; `train` is the default.
MODES = {
    "train": "run it, or go on with what --workdir holds",
    "list": "experiments, fiddlers and tags",
    "explain": "all values as a tree, each with its origin",
    "diff": "what differs from --against",
    "graph": "a drawing of the graph",
    "check": "sizes, memory, data and plan, without a device",
    "import_config": "an experiment from another program's settings",
    "replay": "run --run again in a new folder and compare",
    "eval": "evaluation of a checkpoint of a run, or of each, --follow",
    "sample": "text from the model of a run",
    "serve": "the model of a run behind an OpenAI-compatible address",
    "export": "the model of a run as a Hugging Face folder, --output",
}
# Those that `--run=DIR` gives the experiment of.
MODES_OF_A_RUN = ("replay", "eval", "sample", "serve", "export")
MODES_THAT_RUN = ("train", "replay")
PLAIN_FIELDS = ("stop_after", "profile")  # flags that set the field of their name
DIRECTIVE_PREFIXES = {"fdl.": "set", "fdl_tag.": "tag"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """One flag.

    `kind` is "text" (last one wins), "switch" (true or false), "list" (repeatable),
    "set" or "fiddler" (directives: applied in the order typed) or "log" (handed to
    absl's own flags). `modes` are those it belongs to; empty for all.
    """

    kind: str
    value: str = ""
    help: str = ""
    modes: tuple[str, ...] = ()


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
    "stop_after": Option(
        kind="set", value="STEPS", help="stop early; the schedule stays as it is"
    ),
    "profile": Option(
        kind="set",
        value="START:STOP",
        help="trace the steps behind START up to STOP: 10:20",
    ),
    "mode": Option(kind="text", value="MODE", help=", ".join(MODES)),
    "path": Option(
        kind="text",
        value="PATH",
        help="the part that is shown",
        modes=("explain", "graph"),
    ),
    "against": Option(
        kind="text",
        value="OTHER",
        help="an experiment, a run's folder or a file",
        modes=("diff",),
    ),
    "output": Option(
        kind="text",
        value="FILE",
        help="a drawing (.svg, .html, .dot, .txt), an experiment, results as JSON "
        "lines, or a new folder",
        modes=("graph", "import_config", "eval", "export"),
    ),
    "from": Option(
        kind="text",
        value="FILE",
        help="a MaxText .yml or a nanoGPT .py",
        modes=("import_config",),
    ),
    "checkpoint": Option(
        kind="text",
        value="STEP",
        help="best, latest (default) or completed steps",
        modes=("eval", "export", "sample", "serve"),
    ),
    "sets": Option(
        kind="text",
        value="A,B",
        help="evaluations of the experiment, or tasks (in_context: all of them)",
        modes=("eval",),
    ),
    "follow": Option(
        kind="switch",
        help="each new checkpoint until the run has ended",
        modes=("eval",),
    ),
    "patience": Option(
        kind="text",
        value="SECONDS",
        help="how long --follow waits while nobody trains (600)",
        modes=("eval",),
    ),
    "dtype": Option(
        kind="text",
        value="TYPE",
        help="of the numbers: float32, bfloat16, float16 (default: as trained)",
        modes=("export",),
    ),
    "coordinator": Option(
        kind="text",
        value="HOST:PORT",
        help="of process 0 of several; with the next two",
        modes=MODES_THAT_RUN,
    ),
    "num_processes": Option(
        kind="text", value="N", help="of the run", modes=MODES_THAT_RUN
    ),
    "process_id": Option(
        kind="text", value="I", help="of this one, from 0", modes=MODES_THAT_RUN
    ),
    "init_timeout": Option(
        kind="text",
        value="SECONDS",
        help="for all processes to come (default 300)",
        modes=MODES_THAT_RUN,
    ),
    "devices": Option(
        kind="text",
        value="N",
        help="on how many (default 1)",
        modes=("check", "import_config"),
    ),
    "memory": Option(
        kind="text", value="16GiB", help="limit of one device", modes=("check",)
    ),
    "topology": Option(
        kind="text",
        value="v5e:16x16",
        help="compile the step for these TPUs: fits, work, bound of speed",
        modes=("check",),
    ),
    "num_slices": Option(
        kind="text", value="N", help="of that topology (default 1)", modes=("check",)
    ),
    "run": Option(
        kind="text",
        value="DIR",
        help="the folder of the run",
        modes=MODES_OF_A_RUN,
    ),
    "tokenizer": Option(
        kind="text",
        value="SPEC",
        help="bytes, tiktoken:NAME or a file (default: that of the run's data)",
        modes=("sample", "serve"),
    ),
    "prompt": Option(
        kind="text", value="TEXT", help="what is continued", modes=("sample",)
    ),
    "prompt_file": Option(
        kind="text",
        value="FILE",
        help="a prompt a line; - for stdin",
        modes=("sample",),
    ),
    "num_tokens": Option(
        kind="text", value="N", help="at most (default 200)", modes=("sample",)
    ),
    "samples": Option(
        kind="text", value="N", help="of each prompt (default 1)", modes=("sample",)
    ),
    "temperature": Option(
        kind="text",
        value="T",
        help="default 0.7; 0 takes the most likely token",
        modes=("sample",),
    ),
    "top_k": Option(
        kind="text", value="K", help="of the K most likely", modes=("sample",)
    ),
    "top_p": Option(
        kind="text",
        value="P",
        help="of the likeliest with probability P",
        modes=("sample",),
    ),
    "min_p": Option(
        kind="text",
        value="P",
        help="of those with P times the likeliest's probability",
        modes=("sample",),
    ),
    "repetition_penalty": Option(
        kind="text", value="R", help="above 1: less of what is there", modes=("sample",)
    ),
    "stop": Option(
        kind="list", value="TEXT", help="where it ends (repeatable)", modes=("sample",)
    ),
    "seed": Option(
        kind="text", value="SEED", help="of the draws (default 0)", modes=("sample",)
    ),
    "json": Option(kind="switch", help="a JSON object a line", modes=("sample",)),
    "host": Option(
        kind="text", value="HOST", help="default 127.0.0.1", modes=("serve",)
    ),
    "port": Option(
        kind="text", value="PORT", help="default 8000; 0: any", modes=("serve",)
    ),
    "max_rows": Option(
        kind="text", value="N", help="continued at once (default 16)", modes=("serve",)
    ),
    "max_length": Option(
        kind="text",
        value="N",
        help="tokens of prompt and continuation (default 2048)",
        modes=("serve",),
    ),
    "max_queue": Option(
        kind="text", value="N", help="waiting at most (default 64)", modes=("serve",)
    ),
    "force": Option(
        kind="switch", help="even where something differs", modes=("replay",)
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
# The rest of the usage; an error shows the first lines only.
_BRIEF = ("workdir", "mode", "help")


def usage(*, brief: bool = False) -> str:
    """What a command line may hold; `brief` fits on the screen of an error."""
    rows = [("--fdl_config=EXPERIMENT", OPTIONS["fdl_config"].help), *_DIRECTIVE_ROWS]
    for name, option in OPTIONS.items():
        if option.kind == "log" or name == "fdl_config":
            continue
        if brief and name not in _BRIEF:
            continue
        flag = f"--{name}={option.value}" if option.value else f"--{name}"
        owners = f"{' and '.join(option.modes)}: " if option.modes else ""
        rows.append((flag, f"{owners}{option.help}"))
    lines = ["usage: python -m roxxel.main --fdl_config=EXPERIMENT [flags]"]
    return "\n".join(lines + [f"  {flag:<24} {text}" for flag, text in rows])
