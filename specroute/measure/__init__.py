"""What has been measured, as frozen figures with intervals, and the estimators behind them.

Pure: no I/O and no clock. Knows nothing of what a policy makes of the figures.
"""

from specroute.measure.acceptance import MAX_K, Acceptance
from specroute.measure.estimate import Estimate, Law
from specroute.measure.figures import Pace, Snapshot
from specroute.measure.level import Mean
from specroute.measure.lifetable import AcceptanceCounts
from specroute.measure.measurements import Measurements
from specroute.measure.traffic import traffic_class

__all__ = [
    "MAX_K",
    "Acceptance",
    "AcceptanceCounts",
    "Estimate",
    "Law",
    "Mean",
    "Measurements",
    "Pace",
    "Snapshot",
    "traffic_class",
]
