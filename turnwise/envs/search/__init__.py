"""Registrations of the search environments."""

from turnwise.envs.registry import EnvSpec

_GEO = "turnwise.envs.search.geo:geo"

SPECS: tuple[EnvSpec, ...] = (
    EnvSpec(
        id="search/geo-1hop",
        entry_point=_GEO,
        kwargs={"hops": 1},
        extra="search",
        summary="One fact about a country, its capital or one of its cities, in one search.",
    ),
    EnvSpec(
        id="search/geo-2hop",
        entry_point=_GEO,
        kwargs={"hops": 2},
        extra="search",
        summary="A fact about the country of a city, in two searches.",
    ),
    EnvSpec(
        id="search/geo-3hop",
        entry_point=_GEO,
        kwargs={"hops": 3},
        extra="search",
        summary="The capital behind a city, or the country of the larger of two cities, in three searches.",
    ),
    EnvSpec(
        id="search/medical-mcq",
        entry_point="turnwise.envs.search.medical:medical",
        extra="search",
        summary="Four-choice questions over ICD-10-CM, with search over its code descriptions.",
    ),
    EnvSpec(
        id="search/qa",
        entry_point="turnwise.envs.search.qa:qa",
        extra="search",
        summary="Your own questions over your own corpus: HotpotQA, MuSiQue, NQ, MedMCQA and PubMedQA files load.",
    ),
)
