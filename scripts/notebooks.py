"""Execute examples/notebooks in a Jupyter kernel and write their outputs anew: ``make notebooks``."""

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"

if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as elsewhere:  # what is shown depends on no folder
            where = {"metadata": {"path": elsewhere}}
            # Neither times nor the interpreter's version: what is committed changes with the numbers alone.
            NotebookClient(notebook, timeout=600, record_timing=False, resources=where).execute()
        notebook.metadata["language_info"] = {"name": "python"}
        nbformat.write(notebook, path)
        print(path.name)
