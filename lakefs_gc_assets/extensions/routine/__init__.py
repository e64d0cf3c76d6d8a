"""One routine of all parts: object lifecycle, stale branches, rules, collection, in this order and on one page."""
