"""Every error of ours, in one tree.

::

    SloError                    a user can mend it: says where, what is wrong, and the next command
    ├── SettingsError           a setting that is malformed, or that this vLLM does not know
    ├── WorkloadError           traffic that makes no sense, or that needs a server known first
    ├── TraceError              a trace file that cannot be read (file and line)
    ├── ProfileError            a device profile that cannot be read or does not cover a step
    ├── ThresholdsError         a threshold file that is malformed, or lacks a row (file, row, key)
    ├── EngineEnvironmentError  an engine environment that is missing or cannot be made
    ├── BootError               the server died or hung before it was ready (root cause, log file)
    ├── MetricsError            /metrics lacks something (the names that were tried)
    └── SearchError             an envelope or a case file that makes no sense
"""


class SloError(Exception):
    """A fault that the user can mend. The text says where, what, and what to do next."""


class SettingsError(SloError):
    """A setting is malformed, or this vLLM version does not accept it."""


class WorkloadError(SloError):
    """Traffic makes no sense, or is asked for before its server's max_num_seqs is known."""


class TraceError(SloError):
    """A trace file cannot be read; the text names file and line."""


class ProfileError(SloError):
    """A device profile cannot be read, or does not cover a step that was asked of it."""


class ThresholdsError(SloError):
    """A threshold file is malformed, or has no row for a test; the text names file, row and key."""


class EngineEnvironmentError(SloError):
    """An engine environment is missing, half made, or cannot be made."""


class BootError(SloError):
    """The server died or hung before it was ready; the text has the root cause and the log file."""


class MetricsError(SloError):
    """`/metrics` lacks a figure; the text lists the names that were tried."""


class SearchError(SloError):
    """A search envelope or a case file makes no sense."""
