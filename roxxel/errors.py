"""Errors that end a run with an exit code that a scheduler can act on.

| code | meaning                                                    |
|------|------------------------------------------------------------|
| 0    | done                                                       |
| 1    | anything else                                              |
| 2    | the configuration or the input is wrong: do not retry      |
| 3    | diverged: do not retry                                     |
| 42   | stopped after saving: start the same command again         |
"""

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_CONFIG = 2
EXIT_DIVERGED = 3
EXIT_RESTART = 42


class ConfigError(ValueError):
    """The configuration or the input is wrong; the message is one readable line."""

    exit_code = EXIT_CONFIG


class ShardFormatError(ValueError):
    """The bytes of a file are not a complete `.rox` shard."""

    exit_code = EXIT_CONFIG


class DivergedError(RuntimeError):
    """Loss or gradient stopped being finite; names the step."""

    exit_code = EXIT_DIVERGED


class PreemptedError(RuntimeError):
    """The run was asked to stop and did so after saving."""

    exit_code = EXIT_RESTART
