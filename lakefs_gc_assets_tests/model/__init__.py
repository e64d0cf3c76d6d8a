"""A formal model of the protocol of a collection, and the check of it by TLC. See docs/evidence/model.md."""
