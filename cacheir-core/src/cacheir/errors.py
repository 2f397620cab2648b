"""Every error CacheIR raises on purpose, each with its exit code; docs/errors.md has a row for each class."""

from __future__ import annotations


class CacheIRError(Exception):
    """One sentence that names the thing and the place, and a hint with a command or a value."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(CacheIRError):
    """A bad option or an unknown name."""

    exit_code = 2


class PluginError(CacheIRError):
    """A plugin, or something a plugin registered, is at fault."""

    exit_code = 3


class PluginLoadError(PluginError):
    """A plugin could not be used, and CACHEIR_STRICT_PLUGINS makes that fatal."""


class PluginConflictError(PluginLoadError):
    """Two plugins registered one name, and CACHEIR_STRICT_PLUGINS makes that fatal; the message names both."""


class HookApiMismatch(PluginError):
    """A plugin was written for another hook API."""


class ModelError(CacheIRError):
    """A model cannot be used."""

    exit_code = 4


class NoImporterError(ModelError):
    """No installed importer takes the path; the message says what each of them said."""


class UnsupportedModelError(ModelError):
    """The model is whole, but asks for something CacheIR does not have; the message names it."""


class MalformedModelError(ModelError):
    """A model file is damaged; the message names the file and the offset, field or tensor."""

    exit_code = 11


class IRError(CacheIRError):
    """A graph is wrong."""

    exit_code = 5


class ParseError(IRError):
    """Graph text cannot be read.

    Attributes:
        line, column: one-based place of the fault, 0 where unknown.
    """

    def __init__(self, message: str, *, line: int = 0, column: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.line = line
        self.column = column


class VerifyError(IRError):
    """A graph breaks the rules; ``problems`` holds all of them."""

    def __init__(self, message: str, *, problems: tuple[object, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems


class TypeRuleError(IRError):
    """An op's inference rule refuses its operands; the verifier adds the place."""


class PassError(CacheIRError):
    """A pass or the pass list is at fault."""

    exit_code = 6


class PassOrderError(PassError):
    """The declared order cannot be met."""


class PassFailed(PassError):
    """A pass raised."""


class PassBrokeGraph(PassError):
    """A pass returned a graph that does not verify; ``problems`` holds what the verifier found."""

    def __init__(self, message: str, *, problems: tuple[object, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems


class PassOptionError(PassError):
    """A pass was given an option it does not have, or a value of the wrong type."""


class LoweringError(CacheIRError):
    """A graph cannot be turned into a schedule."""

    exit_code = 7


class NoKernelError(LoweringError):
    """No kernel, decomposition or reference takes an op; the message lists the refusals."""


class MemoryPlanError(LoweringError):
    """Buffers cannot be given places."""


class ArtifactError(CacheIRError):
    """An artifact cannot be used."""

    exit_code = 8


class ArtifactVersionError(ArtifactError):
    """The artifact was written in a format this core does not read."""


class ArtifactDamagedError(ArtifactError):
    """A file of the artifact is missing or does not have the recorded content."""


class MissingKernelError(ArtifactError):
    """The artifact names a kernel that is not installed here."""


class BackendError(CacheIRError):
    """A backend cannot do what it was asked."""

    exit_code = 9


class BackendUnavailable(BackendError):
    """The backend's probe says why it cannot run here."""


class DeviceOutOfMemory(BackendError):
    """Asked for, free, and what would fit."""


class RequestError(CacheIRError):
    """A request cannot be served; ``status`` is the HTTP status the server answers with."""

    exit_code = 10
    status = 400


class RequestTooLong(RequestError):
    """Prompt and answer do not fit the context."""


class QueueFull(RequestError):
    """The queue's limit is reached."""

    status = 429


class DeadlineExceeded(RequestError):
    """The request's deadline passed before it was done."""

    status = 504


class RequestCancelled(RequestError):
    """The client went away or took the request back."""

    status = 499


class OutOfPages(RequestError):
    """The KV pool has too few free pages for the request."""

    status = 503
