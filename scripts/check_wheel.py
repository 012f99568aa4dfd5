"""Check that a wheel carries every source, kernel and type marker of the package; exit 1 naming what it lacks."""

import sys
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "ksieve"
SHIPPED = ("*.py", "py.typed", "*.cu", "*.cuh", "*.json")


def main(wheel: str) -> int:
    """Compare the wheel with the source tree."""
    packed = set(zipfile.ZipFile(wheel).namelist())
    expected = {path.relative_to(PACKAGE.parent).as_posix() for pattern in SHIPPED for path in PACKAGE.rglob(pattern)}
    lacking = sorted(expected - packed)
    for name in lacking:
        print(f"{Path(wheel).name} lacks {name}", file=sys.stderr)
    if not lacking:
        print(f"{Path(wheel).name}: all {len(expected)} files of the package, {Path(wheel).stat().st_size:,} bytes")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
