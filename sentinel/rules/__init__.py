"""The tables of `rules/` as they are read: `tables` reads any, the others are of one each."""
