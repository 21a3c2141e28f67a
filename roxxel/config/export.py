"""`--mode=export`: the model of a run as a folder of Hugging Face."""

import os
from collections.abc import Iterator
from typing import Any

from roxxel.config import arguments, opened, resolve, run_info
from roxxel.errors import ConfigError


def run(found: resolve.Experiment, line: arguments.CommandLine) -> str:
    """Writes the model of a run; says what was written.

    Raises:
      ConfigError: a flag or the run is not as it has to be, or transformers has nothing
        that expresses the model; nothing was written.
    """
    output = line.get("output")
    if not output:
        raise ConfigError("--mode=export: give --output=FOLDER, a new folder to write.")
    dtype = line.get("dtype")
    checkpoint = opened.parse_checkpoint(line.get("checkpoint"))
    workdir = opened.folder(found, line)
    from roxxel.exchange import huggingface, tokenizer_files

    huggingface.check_export(output, dtype)
    run = opened.open_run(found, workdir, checkpoint=checkpoint)
    specs = dict.fromkeys(_tokenizers(run.data))
    with_files = [spec for spec in specs if tokenizer_files.find(spec)]
    recorded = (run_info.read(workdir).get("position") or {}).get("seq_len")
    length = {"max_length": recorded} if isinstance(recorded, int) else {}
    written = huggingface.export_hf(
        run.model,
        output,
        dtype=dtype,
        tokenizer=with_files[0] if with_files else None,
        **length,
    )
    files = ", ".join(sorted(os.listdir(written)))
    lines = [f"step {run.step} of {workdir} is in {written}: {files}"]
    if not with_files:
        known = ", ".join(specs) or "no tokenizer"
        lines.append(f"no tokenizer files are in it: the run's data name {known}")
    return "\n".join(lines)


def _tokenizers(data: dict[str, dict[str, Any]]) -> Iterator[str]:
    """What names the tokenizer of each data set of the run."""
    for facts in data.values():
        tokenizer = facts.get("tokenizer")
        if isinstance(tokenizer, dict):
            yield str(tokenizer.get("spec") or tokenizer.get("name"))
