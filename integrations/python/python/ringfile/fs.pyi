from collections.abc import Sequence
from typing import Any, Literal

from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped, unused-ignore]

__all__ = ["RingFileSystem"]

# All else is LocalFileSystem's.
class RingFileSystem(LocalFileSystem):  # type: ignore[misc, unused-ignore]
    protocol: str
    def __init__(
        self,
        auto_mkdir: bool = False,
        direct: bool = False,
        adaptive: bool = True,
        dont_cache: bool = False,
        sync: bool = False,
        **kwargs: Any,
    ) -> None: ...
    def cat_ranges(
        self,
        paths: list[str],
        starts: Sequence[int | None] | int | None,
        ends: Sequence[int | None] | int | None,
        max_gap: None = None,
        on_error: Literal["return", "raise"] = "return",
        **kwargs: Any,
    ) -> list[Any]: ...
    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes: ...
    def cat(self, path: str | list[str], recursive: bool = False, on_error: str = "raise", **kwargs: Any) -> Any: ...
    def pipe_file(
        self, path: str, value: bytes, mode: Literal["overwrite", "create"] = "overwrite", sync: bool | None = None, **kwargs: Any
    ) -> None: ...
