"""Hold a summary.json against the published schema: ``python scripts/check_summary.py FILE``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema

from equipoise.study import schema


def main(path: str) -> None:
    """Validate one file; the first violation is printed with its place."""
    summary = json.loads(Path(path).read_text("utf-8"))
    errors = sorted(jsonschema.Draft202012Validator(schema()).iter_errors(summary), key=str)
    if errors:
        sys.exit(f"{path}: {errors[0].json_path}: {errors[0].message} ({len(errors)} violations)")
    print(f"{path}: {len(summary['cells'])} cells, valid against {summary['schema']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
