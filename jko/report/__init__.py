"""Reports: one HTML page each, with everything inside, that opens offline and prints."""

from .run import write_run_report
from .verification import write_verification_report

__all__ = ["write_run_report", "write_verification_report"]
