"""Standing approvals: granted and withdrawn by command, and used by the schedule of dry runs."""
