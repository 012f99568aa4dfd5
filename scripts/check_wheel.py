"""Check that the two wheels of a folder carry every source, kernel and type marker of their packages, and no other."""

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = {"ksieve": ROOT / "src" / "ksieve", "ksieve_lab": ROOT / "lab" / "src" / "ksieve_lab"}
SHIPPED = ("*.py", "py.typed", "*.cu", "*.cuh", "*.json")


def check(wheel: Path, package: Path) -> list[str]:
    """Compare a wheel with its source tree; return what is wrong."""
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {path.relative_to(package.parent).as_posix() for pattern in SHIPPED for path in package.rglob(pattern)}
    return [f"{wheel.name} lacks {name}" for name in sorted(expected - packed)] + [
        f"{wheel.name} holds {name}" for name in sorted(packed - expected) if not name.endswith(".md")
    ]


def main(folder: str) -> int:
    """Check the wheel of each package; 1 if anything is wrong."""
    faults = []
    for name, package in PACKAGES.items():
        (wheel,) = Path(folder).glob(f"{name}-[0-9]*.whl")
        faults += check(wheel, package)
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes")
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
