"""Results of the checks of a decoder."""

import dataclasses
import textwrap
from typing import Literal

_WIDTH = 92


@dataclasses.dataclass(frozen=True)
class DecoderCheck:
    """Result of one check.

    Attributes:
        name: Name of the check, such as `future tokens`.
        result: `passed`, `failed` or `skipped`.
        message: What a failed check found, or why a check is skipped.
        cause: Likely cause of a failure.
        input_name: Name of the input that the outputs depend on, such as `target_ids`.
        place: `(batch, position)` where the outputs differ first.
        difference: The largest difference between outputs that must be equal.
    """

    name: str
    result: Literal["passed", "failed", "skipped"]
    message: str = ""
    cause: str = ""
    input_name: str | None = None
    place: tuple[int, int] | None = None
    difference: float | None = None


@dataclasses.dataclass(frozen=True)
class DecoderReport:
    """Results of all checks of a decoder. `str(report)` is a table.

    `report["future tokens"]` is the check of this name.

    Attributes:
        checks: All checks, in the order in which they ran.
    """

    checks: tuple[DecoderCheck, ...]

    @property
    def failures(self) -> tuple[DecoderCheck, ...]:
        """Failed checks."""
        return tuple(check for check in self.checks if check.result == "failed")

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return not self.failures

    def raise_if_failed(self) -> None:
        """Raises `AssertionError` with the table if a check failed."""
        if not self.ok:
            raise AssertionError(f"\n{self}")

    def __getitem__(self, name: str) -> DecoderCheck:
        return {check.name: check for check in self.checks}[name]

    def __str__(self):
        width = max(len(check.name) for check in self.checks)
        lines = []
        for check in self.checks:
            result = check.result.upper() if check.result == "failed" else check.result
            line = f"{result:<9}{check.name:<{width + 2}}"
            if check.result == "skipped":
                line += check.message
            elif check.difference is not None:
                line += f"largest difference {check.difference:.2g}"
            lines.append(line.rstrip())
            if check.result == "failed":
                lines += _wrapped(check.message)
                lines += _wrapped(f"Likely cause: {check.cause}") if check.cause else []
        count = len(self.failures)
        lines.append(f"{count} of {len(self.checks)} checks failed" if count else "No check failed")
        return "\n".join(lines)


def _wrapped(text):
    return textwrap.wrap(text, _WIDTH, initial_indent=" " * 9, subsequent_indent=" " * 9)
