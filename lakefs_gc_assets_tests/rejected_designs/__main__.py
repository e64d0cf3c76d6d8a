"""`python -m lakefs_gc_assets_tests.rejected_designs` explores all designs and prints the page about them."""

import sys

from lakefs_gc_assets_tests.rejected_designs.page import render

sys.stdout.write(render())
