"""Many requests as one job: ordered results, a journal to resume from, one error per item.

``items`` reads what is asked for, ``journal`` remembers what was answered, ``run`` sends,
``results`` is what comes out, ``progress`` shows it; ``job`` has the provider do it instead.
"""

from specroute.batch.items import BatchRequest, read_requests
from specroute.batch.job import Place, run_jobs
from specroute.batch.journal import Journal
from specroute.batch.progress import Progress
from specroute.batch.results import BatchItem, BatchResult
from specroute.batch.run import run_batch

__all__ = [
    "BatchItem",
    "BatchRequest",
    "BatchResult",
    "Journal",
    "Place",
    "Progress",
    "read_requests",
    "run_batch",
    "run_jobs",
]
