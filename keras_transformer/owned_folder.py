"""Folders that a command owns: written aside, exchanged only where it made every file."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from keras_transformer.errors import InputError
from keras_transformer.files import sync, write_whole, writing
from keras_transformer.locks import LOCK, held_folder, left_behind, locked_folder

MANIFEST = "export.json"
"""The file that marks a folder as an export; without it no folder is replaced."""

# Files of exports that their manifests do not list.
_OF_AN_EXPORT = {MANIFEST, "README.md", "verification.json", "model.bin", "config.json"} | {
    f"{side}{name}"
    for side in ("", "source_", "target_", "shared_")
    for name in ("tokenizer.model", "vocabulary.json")
}


class OwnedFolder:
    """A folder, and the rule that tells the files of the command that made it from others.

    `exchanged` takes it through four states. A kill leaves the state as it is, and the next call of
    `staged` brings the folder to the state in brackets.

        1 before       NAME, or nothing
        2 written      NAME, or nothing    .NAME.partial-…/{new}               [1]
        3 exchanging   NAME, or a part     .NAME.partial-…/{new, old, names}   [1, by `names`]
        4 after        NAME                .NAME.partial-…/{old, names}        [4]

    Args:
        path: Path of the folder, which need not exist.
        marker: Name of the file in the folder that marks it as whole. It is written last and
            removed first. Without `owns`, a folder without it is not replaced.
        owns: Takes a file's path in the folder, `/` between names; True where the command made it.
            By default the marker is JSON whose `files` names them.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        marker: str = MANIFEST,
        owns: Callable[[str], bool] | None = None,
    ):
        # Resolved: replacing a link would leave the folder that it points to behind.
        self.path = Path(os.path.realpath(path))
        self.marker = marker
        self._named = os.fspath(path)
        self._owns = owns
        self._temporary = f".{self.path.name}.partial-"

    def ownership_rule(self) -> Callable[[str], bool]:
        """Returns the rule for the folder as it is now, with the remains of earlier processes."""
        if self._owns is not None:
            return self._owns
        try:
            known = set(json.loads((self.path / self.marker).read_text(encoding="utf-8"))["files"])
        except (OSError, ValueError, TypeError, KeyError):
            known = set()
        if self.marker == MANIFEST:
            known |= _OF_AN_EXPORT
        return lambda path: path in known or path.startswith(self._temporary)

    def is_left_beside(self, name: str) -> bool:
        """Returns whether a name next to the folder is one that a killed process left there."""
        return name.startswith(self._temporary) or name == f".{self.path.name}.lock"

    def check(self) -> None:
        """Raises `InputError` for the first file that another program made."""
        owns = self.ownership_rule()
        for path in sorted(self.path.rglob("*")):
            name = path.relative_to(self.path).as_posix()
            # A link is a file, wherever it points.
            if (path.is_symlink() or not path.is_dir()) and not owns(name) and name != LOCK:
                raise InputError(
                    f"{self._named}: is not overwritten, because there is a file that this command "
                    f"did not make: {name}. Remove it, or give another output."
                )

    def check_replaceable(self, overwrite: bool, other_options: str = "") -> None:
        """Raises `InputError` unless the folder is missing, empty, or may be overwritten.

        Args:
            overwrite: Whether what is there may be replaced, if the command made all of it.
            other_options: Options of the command that help, other than `--overwrite`.
        """
        if not os.path.lexists(self.path):
            return
        if not self.path.is_dir():
            raise InputError(f"{self.path}: the output must be a folder. Received: a file.")
        if not self._entries(self.path):
            return
        if not overwrite:
            raise InputError(
                f"{self._named}: exists already. Give {other_options}--overwrite to replace it, or "
                "another --output."
            )
        # A slip of the keyboard must not cost a run folder or a home directory.
        if self._owns is None and not (self.path / self.marker).is_file():
            raise InputError(
                f"{self.path}: only an earlier output of this command is overwritten. "
                f"Received: a folder without {self.marker}."
            )
        self.check()

    def restore(self) -> None:
        """Removes what killed processes left; an output that was being replaced comes back."""
        for parent in (self.path.parent, self.path):
            for folder in left_behind(parent / self._temporary):
                self._remove(folder)

    @contextlib.contextmanager
    def staged(self, overwrite: bool = False, wait: bool = False) -> Iterator[Path]:
        """Gives a temporary folder that takes this folder's name when the block succeeds.

        The folder is locked meanwhile (`locked_folder`); see `exchanged`.

        Args:
            overwrite: Whether an earlier output may be replaced, if it holds no other file.
            wait: Whether to wait for another process that writes to the folder.

        Raises:
            InputError: The folder exists and may not be replaced, cannot be written, or another
                process writes to it.
        """
        with locked_folder(self._named, wait):
            self.restore()
            with self.exchanged(overwrite, lambda: self.check_replaceable(overwrite)) as folder:
                yield folder

    @contextlib.contextmanager
    def exchanged(self, overwrite: bool, check: Callable[[], object]) -> Iterator[Path]:
        """Gives a temporary folder that takes this folder's name when the block succeeds.

        The caller holds the folder's lock and has called `restore`. All that the block wrote is
        synced before it moves. Any exception, `KeyboardInterrupt` too, leaves the output as it was.

        A folder that is empty, or where something is mounted, stays itself: the temporary folder is
        made in it, and the content moves, the marker last. An earlier output in such a mounted
        folder leaves it before, the marker first: no reader sees the marker of half an output.

        Args:
            overwrite: Whether an earlier output may be replaced.
            check: Raises `InputError` if the folder may not be replaced.

        Raises:
            InputError: The folder may not be replaced, or cannot be written.
        """
        output = self.path
        check()
        with contextlib.ExitStack() as stack:
            stays = output.is_dir() and (os.path.ismount(output) or not self._entries(output))
            # Otherwise next to the output: a rename is atomic only within one file system.
            parent = output if stays else output.parent
            start = parent / self._temporary
            try:
                temporary = stack.enter_context(held_folder(start, remove=self._remove))
                new, old = temporary / "new", temporary / "old"
                old.mkdir()
                staging = new if stays else new / output.name
                staging.mkdir(parents=True)
            except OSError as error:
                raise InputError(f"{output}: cannot be written: {error.strerror}.") from None
            with self._final_names(staging):
                yield staging
                for path in [*staging.rglob("*"), staging]:
                    with writing(path):
                        sync(path)
            check()  # Again: the block may have taken hours.
            arriving, leaving = self._entries(new), self._entries(output) if stays else [output]
            write_whole(temporary / "names", json.dumps([path.name for path in arriving]))
            # Without `overwrite` the second rename fails where another program has been faster.
            for path in reversed(leaving) if overwrite and output.exists() else []:
                os.rename(path, old / path.name)
            for path in arriving:
                os.rename(path, parent / path.name)
            sync(parent)

    @contextlib.contextmanager
    def _final_names(self, staging):
        """Replaces a temporary path in an `OSError` by the path that the file would have."""
        try:
            yield
        except OSError as error:
            path = Path(str(error.filename))
            if path.is_relative_to(staging):
                error.filename = os.fspath(Path(self._named, path.relative_to(staging)))
            raise

    def _remove(self, temporary):
        """Removes a temporary folder; what an interrupted exchange has moved goes back before."""
        parent, new, old = temporary.parent, temporary / "new", temporary / "old"
        names = temporary / "names"
        arriving = json.loads(names.read_text(encoding="utf-8")) if names.exists() else []
        # Where a name is taken, both outputs stay in the temporary folder for the next call.
        with contextlib.suppress(OSError):
            if any(os.path.lexists(new / name) for name in arriving):
                for name in reversed(arriving):
                    if os.path.lexists(parent / name) and not os.path.lexists(new / name):
                        os.rename(parent / name, new / name)
                for path in self._entries(old):
                    os.rename(path, parent / path.name)
                names.unlink()  # First: without it nothing moves again.
            shutil.rmtree(temporary, ignore_errors=True)

    def _entries(self, folder):
        """Paths in a folder, the marker last, without the lock and temporary folders."""
        paths = [path for path in folder.glob("*") if path.name != LOCK]
        paths = [path for path in paths if not path.name.startswith(self._temporary)]
        return sorted(paths, key=lambda path: path.name == self.marker)
