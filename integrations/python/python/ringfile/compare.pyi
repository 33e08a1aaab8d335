import os
from collections.abc import Callable, Sequence

def compare(
    path: str | os.PathLike[str],
    lengths: Sequence[int] = (4096, 131072),
    rounds: int = ...,
    progress: Callable[[float], object] = ...,
) -> dict[tuple[int, str], dict[str, float]]: ...
def main(arguments: Sequence[str] | None = None) -> None: ...
