"""Options of the translation of files."""

from keras_transformer.base.options import CheckedOptions, option


class BulkOptions(CheckedOptions):
    """Options of a translation of files.

    Raises:
        InputError: A value is out of range.
    """

    chunk_lines: int = option(
        500, "number of lines that are translated at a time", ge=1, strict=None
    )
    threads: int | None = option(
        None,
        "number of threads, per worker with Ray; by default 1 with Ray, else the engine's default",
        ge=1,
    )
    workers: int | None = option(
        None,
        "number of Ray's processes; by default the number of this machine's cores divided by "
        "`threads`",
        ge=1,
    )
    ray_address: str | None = option(
        None, "address of a Ray cluster; by default Ray is started on this machine"
    )
