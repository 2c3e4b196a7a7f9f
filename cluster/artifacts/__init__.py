"""The files of models and adapters: where they come from, and the cache that holds them on a node.

`sources.py` reads a spec's `source`; `pull.py` makes a local folder of it. It asks an origin (`s3.py`, `hub.py`,
`folder.py`) for a listing, has it fetch what the cache (`cache.py`) lacks, and holds the entry. `download.py` remembers
which files are whole; `cluster/fetch_progress.py` shows how far a fetch is.
"""

from cluster.artifacts.cache import Held, ModelCache
from cluster.artifacts.pull import LocalFiles, local_files
from cluster.artifacts.sources import ArtifactError, StorageUnavailable, is_hub_name, missing_sources, resolve_source
