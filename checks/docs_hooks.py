"""What MkDocs asks of this repository: pages of the reference are made from the code at each build."""

from __future__ import annotations

import json
from typing import Any

from mkdocs.structure.files import File, Files

from checks import reference


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and the JSON Schema that editors read."""
    for name, make_page in reference.PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=make_page()))
    schema = json.dumps(reference.declaration_schema(), indent=2)
    files.append(File.generated(config, "reference/declaration.schema.json", content=schema))
    return files
