"""The words of the pico models, by family: all that a model of it can say or read."""

from __future__ import annotations

_HIGHEST = 50  # number that pico-guess knows
LOOKUP = (*"abcdefgh", "get", "answer", "error", "right", "wrong", "hops", "from", *"1234")
GUESS = (
    *("Guess my number, an integer from 1 to", "Answer like this:"),
    *("My number is higher than", "My number is lower than", "\nTurns left:"),
    *(f"{number}." for number in range(_HIGHEST + 1)),
    *(f"\\boxed{{{number}}}" for number in range(1, _HIGHEST + 1)),
)
CHAT = (
    *("review", "the", "of", "in", "and", "but", "."),
    *("film", "book", "play", "song", "game", "meal", "hotel", "phone"),
    *("price", "look", "style", "feel", "idea", "detail", "start", "end"),
    *("is", "was", "feels", "seems", "very", "really", "truly", "well", "so", "now"),
    *("good", "great", "lovely", "clever", "warm", "fresh", "fun", "superb"),
    *("bad", "poor", "dull", "weak", "cold", "ugly", "slow", "awful"),
)
_DIGITS = tuple("0123456789")
_CELLS = (*_DIGITS, "#", ".", "A:", "B:", "C:")
GAMES = (  # boards of mastermind, hanoi, minesweeper and sudoku, and moves on them
    *_CELLS,
    *(f"\n{cell}" for cell in _CELLS),
    *("\nTurns left:", *(f"{number}." for number in range(1, 21))),
    *(f"{code}:" for code in range(11, 67)),
    *(f"\\boxed{{{code}}}" for code in range(11, 67)),
    *("in place,", "elsewhere."),
    *(f"\\boxed{{{cell}" for cell in (*_DIGITS, *"ABC")),
    *(f"{cell}}}" for cell in (*_DIGITS, *"ABC")),
)
CLASSIFY = (
    *("<Judgement>", "</Judgement>", "animal", "plant", "tool", "food"),
    *("ant", "bear", "cat", "dog", "eel", "fox"),
    *("fern", "lily", "moss", "oak", "pine", "rose"),
    *("axe", "drill", "file", "hammer", "rake", "saw"),
    *("bread", "cake", "jam", "rice", "soup", "stew"),
    *("blick", "dax", "fep", "gazzer", "kiki", "lorp", "mib", "nonce", "plim", "toma", "wug", "zav", "unsure"),
)
ACTIONS = (
    *("from", "the", "bridge", "church", "farm", "mill", "school", "tower"),
    *("left", "right", *map(str, range(1, 19))),
    *("microwave", "is", "closed", "open", "food", "inside", "done", "put", "on", "plate", "close"),
)
_CHOICES = ("rock", "paper", "scissors")
DUELS = (  # positions of nim, Kuhn's poker and rock-paper-scissors, and moves in them
    *("Piles:", "\nPiles:", *(f"{pile}={stones}" for pile in "ABC" for stones in range(6))),
    *(f"\\boxed{{{pile}{stones}}}" for pile in "ABC" for stones in range(1, 6)),
    *(f"\nYou hold {card}. Play so far: {played}." for card in "JQK" for played in ("nothing", "check", "bet")),
    *(f"You hold {card}. Play so far: check, bet." for card in "JQK"),
    *("\nChoose.", *(f"Last round: {mine} against {other}." for mine in _CHOICES for other in _CHOICES)),
    *(f"\\boxed{{{move}}}" for move in ("check", "bet", "fold", "call", *_CHOICES)),
)
PLANS = (  # requests in terse form, and calls by bare names
    *("a", "b", "c", "d", "e", "f", "g", "h", "i", ",", ";", ".", ":"),
    *("and", "but", "yet", "while", "whereas", "which"),
    *("precede", "precedes", "come", "comes", "go", "goes", "follow", "follows", "succeed", "succeeds", "wait"),
    *(
        "waits",
        "happen",
        "happens",
        "occur",
        "occurs",
        "take",
        "takes",
        "place",
        "is",
        "are",
        "executed",
        "carried",
        "out",
    ),
    *("out", "performed", "completed", "followed", "preceded", "succeeded", "by", "before", "after", "ahead", "of"),
    *(
        "earlier",
        "later",
        "sooner",
        "than",
        "prior",
        "to",
        "in",
        "advance",
        "the",
        "wake",
        "following",
        "subsequent",
        "only",
    ),
    *("some", "time", "at", "point", "when", "once", "as", "soon", "for"),
    *("done", "error", "30", "60", "90", "minutes", "start_over", "new", "day", "begins."),
    *(f"{minute // 60:02}:{minute % 60:02}" for minute in range(480, 1321, 30)),
)
FEELINGS = (  # those of `turnwise.envs.feelings.feeling_brief`
    *("so", "feel", "unfair", "me", "bravely", "kind", "grown", "go-on", "here", "try", "both", "because", "yourself"),
    *("innocent", "fine", "guilty", "nothing", "accused", "suspected", "again", "pattern", "unsure", "torn", "stone"),
    *("unseen", "full", "interrupted", "puzzled", "how-come", "stuck", "tomorrow", "effort", "unnoticed"),
    *("relieved", "better", "hm", "low", "leaving"),
    *("job", "report", "meeting", "car", "friend", "phone", "birthday", "letter", "family", "hospital", "money"),
    *("door", "exam", "question", "marks", "father", "home", "piano", "note", "stairs", "love", "restaurant"),
    *("message", "sofa", "team", "practice", "list", "tickets", "shop", "coupon", "queue", "warning", "pet"),
    *("winter", "late", "bowl", "school", "supermarket", "nights", "lock", "rent", "holiday", "bicycle", "art"),
    *("frame", "sunrise", "husband"),
)
_OUTPUTS = tuple(f"/home/user/{name}.txt" for name in "wxyz")
TERMINALS = (  # those of `turnwise.envs.terminals.families.brief_family`
    *("count", "keep", "drop", "first", "last", "flip", "order", "copy", "into", ">", "-c", "-v", "-n"),
    *("eagle", "falcon", "heron", "ibis", "kite", "lark", "owl", "robin", "2", "3", "4"),
    *(f"/home/user/{name}.txt" for name in "abcd"),
    *_OUTPUTS,
    *(f"<command>{program}" for program in ("grep", "head", "tail", "tac", "sort", "cat")),
    *(f"{path}</command>" for path in _OUTPUTS),
)
MEMORY = (  # those of `turnwise.envs.memory` in terse form
    *("fact", "use", "answer", "what", "when", "of", "country", ":", ";", "ADD", "UPDATE", "DELETE", "NOOP"),
    *map(str, range(1, 81)),
    *("ann", "bob", "cleo", "dan", "eve", "finn", "gus", "hana", "ivo", "jude", "kim", "lea"),
    *("pets", "hobbies", "trips", "home", "job", "friend", "chat", "no", "none"),
    *("buddy", "scout", "rex", "luna", "milo", "coco", "chess", "tennis", "piano", "yoga", "golf", "dance"),
    *("oslo", "bergen", "rome", "milan", "paris", "lyon", "madrid", "seville", "norway", "italy", "france", "spain"),
    *("nurse", "baker", "pilot", "judge", "tailor", "clerk"),
    *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october"),
    *("weather", "traffic", "lunch", "news", "football", "music"),
)
