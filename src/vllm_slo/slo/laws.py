"""The names of the lint rules, which a row's `accept` may list."""

QUANTILE_ORDER = "quantile-order"
LITTLES_LAW = "littles-law"
ROOFLINE = "roofline"
MONOTONY = "monotony"
UNUSED = "unused"
PROVENANCE = "provenance"

# What a row cannot accept: the file is not understood.
SCHEMA = "schema"

LAWS = (QUANTILE_ORDER, LITTLES_LAW, ROOFLINE, MONOTONY, UNUSED, PROVENANCE)
