"""The exit codes of all commands, as one table."""

from types import MappingProxyType

DONE, FAILED, USAGE, SOME_FAILED, DISK_FULL, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 4, 130, 141
EXIT_CODES = MappingProxyType(
    {
        DONE: "done",
        FAILED: "an error, written to standard error; doctor: llama.cpp cannot be used; "
        "families check: the file has mistakes; models remove: nothing was removed",
        USAGE: "wrong usage; batch: wrong input",
        SOME_FAILED: "batch: some rows failed, see the error file",
        DISK_FULL: "batch: the disk is full; make room and run the same command to go on",
        INTERRUPTED: "interrupted (Ctrl-C); the same command resumes a batch",
        BROKEN_PIPE: "the program that read the output ended",
    }
)
