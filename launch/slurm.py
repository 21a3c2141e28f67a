"""A sweep as a SLURM job array: one index runs one trial, and requeues itself."""

import shlex
import sys
from pathlib import Path

from launch.folder import Folder, write_text
from launch.problems import EXIT_RESTART
from launch.trial import INDEX_FILE

SCRIPT = "array.sbatch"

_TEMPLATE = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=0-{last}
#SBATCH --output={logs}/%a.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
{options}
# Submit with: sbatch {script}
# A trial that is over ends at once, so submitting again starts what is left.
cd {cwd}
{python} -m launch.trial --sweep_dir={folder} --index="$SLURM_ARRAY_TASK_ID" &
trial=$!
trap 'kill -TERM "$trial" 2>/dev/null' TERM INT
wait "$trial"
code=$?
while kill -0 "$trial" 2>/dev/null; do  # a signal ended the wait, not the trial
  wait "$trial"
  code=$?
done
if [ "$code" -eq {restart} ]; then
  scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
fi
exit "$code"
"""


def write(folder: Folder, trial_ids: list[str], *, options: str, cwd: Path) -> Path:
    """Writes `trials.txt` and `array.sbatch` into the folder; the script's path.

    `options` are further flags of sbatch, e.g. `--time=4:00:00 --gres=gpu:1`.
    """
    logs = folder.path / "slurm"
    logs.mkdir(parents=True, exist_ok=True)
    write_text(folder.path / INDEX_FILE, "".join(f"{i}\n" for i in trial_ids))
    script = folder.path / SCRIPT
    content = _TEMPLATE.format(
        name=f"sweep-{folder.path.name}",
        last=len(trial_ids) - 1,
        logs=logs,
        options="".join(f"#SBATCH {word}\n" for word in shlex.split(options)),
        script=shlex.quote(str(script)),
        cwd=shlex.quote(str(cwd)),
        python=shlex.quote(sys.executable),
        folder=shlex.quote(str(folder.path)),
        restart=EXIT_RESTART,
    )
    write_text(script, content)
    return script
