"""Words, names and records that tasks are made of."""

from __future__ import annotations

from random import Random

ROLES = (
    *("a release manager", "a site reliability engineer", "a data analyst", "a bioinformatician", "a teacher"),
    *("a database administrator", "a network operator", "a librarian", "a security auditor", "a web developer"),
    *("a support engineer", "a build engineer", "a translator", "a game designer", "a warehouse clerk"),
    *("a researcher in climate science", "an accountant", "a technical writer", "a student", "a hospital planner"),
)
FOLDERS = ("amber", "basalt", "cedar", "delta", "ember", "fjord", "grove", "harbor", "iris", "jade", "karst", "linden")
WORDS = (
    *("anchor", "beacon", "canyon", "dagger", "eagle", "falcon", "garnet", "hazel", "indigo", "jasper", "kernel"),
    *("ladder", "marble", "nectar", "orchid", "pepper", "quartz", "ribbon", "saddle", "timber", "umbrella", "velvet"),
    *("walnut", "yellow", "zephyr", "barrel", "copper", "dragon", "engine", "flower", "guitar", "hammer", "island"),
)
NAMES = (
    *("Ada", "Boris", "Chen", "Dalia", "Emil", "Fatou", "Goran", "Hana", "Ivo", "Jamila", "Kofi", "Lena", "Marco"),
    *("Nadia", "Omar", "Priya", "Quentin", "Rosa", "Stefan", "Tala", "Uri", "Vera", "Wanda", "Ximena", "Yusuf", "Zoe"),
)
CITIES = ("Accra", "Bergen", "Cusco", "Dakar", "Erfurt", "Fukuoka", "Galway", "Hanoi")
TEAMS = ("billing", "search", "mobile", "storage", "design")
LEVELS = ("DEBUG", "INFO", "WARN", "ERROR")
SERVICES = ("auth", "cart", "mail", "queue", "cache")
Row = tuple[str, str, str, int]


def sample(rng: Random, words: tuple[str, ...], fewest: int, most: int) -> list[str]:
    """Different words in random order."""
    return rng.sample(words, rng.randint(fewest, most))


def lines(rows: list[str]) -> str:
    """The text with these lines."""
    return "".join(f"{row}\n" for row in rows)


def sentence(rng: Random, fewest: int = 4, most: int = 8) -> str:
    """A few words in a row."""
    return " ".join(sample(rng, WORDS, fewest, most))


def log_rows(rng: Random, count: int) -> list[tuple[str, str, str, str]]:
    """(time, level, service, message) in the order of time; every level and service occurs."""
    minutes = sorted(rng.sample(range(24 * 60), count))
    rows = [
        (f"2025-03-{10 + place * 5 // count:02d}T{minute // 60:02d}:{minute % 60:02d}", *_kind(rng, place))
        for place, minute in enumerate(minutes)
    ]
    return [(time, level, service, sentence(rng, 2, 4)) for time, level, service in rows]


def _kind(rng: Random, place: int) -> tuple[str, str]:
    pairs = tuple(zip(LEVELS + LEVELS[:1], SERVICES, strict=True))
    return pairs[place] if place < len(pairs) else (rng.choice(LEVELS), rng.choice(SERVICES))


def people(rng: Random, count: int) -> list[Row]:
    """(name, city, team, amount); names differ, amounts differ."""
    amounts = rng.sample(range(100, 999), count)
    chosen = rng.sample(NAMES, count)
    return [(name, rng.choice(CITIES), rng.choice(TEAMS), amount) for name, amount in zip(chosen, amounts, strict=True)]


def csv_text(rows: list[Row]) -> str:
    """People as CSV with a header."""
    return lines(["name,city,team,amount", *(f"{name},{city},{team},{amount}" for name, city, team, amount in rows)])
