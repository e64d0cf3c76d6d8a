"""A formal model of a collection's protocol, checked by TLC. See docs/evidence/model.md."""
