"""Ranks that are unequal by their role, told from how long each has taken since the start.

The stages of a pipeline are unequal by nature: the first holds embeddings, the last the vocabulary and the loss. So a
rank that has always been slower than the others is not slow: where several take equally long, where it is the first
or the last, or where the others are unequal too. Only a rank that stands alone among equals is.
"""

from collections.abc import Mapping
from itertools import pairwise

from sentinel.core.timing.statistics import medians_of_others

APART = 1.05  # between two ranks that follow each other in speed: more, and they are of two levels
EQUAL_SHARE = 0.75  # of the ranks are of one level where one that stands alone is no stage


def shares(usual: Mapping[int, float]) -> dict[int, float]:
    """`usual`: how long each of at least two ranks took at the start, above 0. By what factor each is slower than the
    median of the others for its role; 1 for those for which no role accounts, or that are faster.
    """
    of_others = medians_of_others(usual)
    levels = _levels(usual)
    equal = max(map(len, levels)) >= EQUAL_SHARE * len(usual) and len(usual) > 2
    edges = (min(usual), max(usual))
    alone = {level[0] for level in levels if len(level) == 1 and level[0] not in edges} if equal else set()
    return {rank: 1.0 if rank in alone else max(1.0, took / of_others[rank]) for rank, took in usual.items()}


def _levels(usual: Mapping[int, float]) -> list[list[int]]:
    ordered = sorted(usual, key=usual.__getitem__)
    levels = [[ordered[0]]]
    for faster, slower in pairwise(ordered):
        if usual[slower] > APART * usual[faster]:
            levels.append([])
        levels[-1].append(slower)
    return levels
