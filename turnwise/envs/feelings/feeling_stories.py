"""What can upset a person: our own stories, each told in an opening and three details that come out one by one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Detail:
    """Something that happened: a sentence of the person, the words by which a reply takes it up, and one short word."""

    text: str
    words: tuple[str, ...]
    brief: str


@dataclass(frozen=True, kw_only=True)
class Story:
    """An event: `other` is who else is in it, `deed` what the person did well."""

    topic: str
    other: str
    opening: str
    details: tuple[Detail, Detail, Detail]
    deed: str


def _story(topic: str, other: str, opening: str, deed: str, *details: tuple[str, str, str]) -> Story:
    first, second, third = (
        Detail(text=text, words=(brief, *words.split()), brief=brief) for text, words, brief in details
    )
    return Story(topic=topic, other=other, opening=opening, details=(first, second, third), deed=deed)


STORIES = (
    _story(
        "job",
        "boss",
        "My boss tore my work apart in front of everybody today.",
        "stayed late to finish it",
        ("I had worked on that report for three weeks.", "weeks work worked", "report"),
        ("The whole meeting just looked at the table.", "room everybody colleagues", "meeting"),
        ("Afterwards I sat in my car and could not start it.", "sat alone driving", "car"),
    ),
    _story(
        "friend",
        "friend",
        "My oldest friend has stopped answering me.",
        "wrote to her first",
        ("We used to talk on the phone every week.", "call calls talk", "phone"),
        ("I saw the pictures of her birthday, and I was not there.", "pictures party invited", "birthday"),
        ("She read my letter and said nothing.", "read silence wrote", "letter"),
    ),
    _story(
        "family",
        "sister",
        "My sister and I had a terrible fight about our mother.",
        "visited every Sunday",
        ("I am the one who drives to the hospital each time.", "drive drives visits", "hospital"),
        ("She called it a matter of money.", "paying pay costs", "money"),
        ("Our mother heard us through the door.", "heard mother hearing", "door"),
    ),
    _story(
        "exam",
        "teacher",
        "I failed the exam that I had prepared for since spring.",
        "went through every old paper",
        ("I knew the first question and still went blank.", "blank forgot mind", "question"),
        ("Everybody was already talking about their marks.", "grade grades results", "marks"),
        ("I told my father that the results are late.", "dad parents told", "father"),
    ),
    _story(
        "home",
        "neighbour",
        "My neighbour has complained about me to the landlord again.",
        "went over to talk",
        ("It is about the piano, and I stop at eight.", "music playing practice", "piano"),
        ("Now there is a note on my door that all can read.", "paper sign wrote", "note"),
        ("I carry my shoes up the stairs so that nobody hears me.", "quiet shoes tiptoe", "stairs"),
    ),
    _story(
        "love",
        "partner",
        "My partner forgot our day, and laughed about it.",
        "planned a whole evening",
        ("I had booked the restaurant two months ago.", "table dinner booked", "restaurant"),
        ("There was a message from somebody else on the screen.", "text screen texting", "message"),
        ("I slept on the sofa, and nobody asked why.", "couch slept sleep", "sofa"),
    ),
    _story(
        "team",
        "captain",
        "They have left me out of the team for the final.",
        "trained in the rain",
        ("I have not missed one practice in two years.", "training trained missed", "practice"),
        ("I heard it from the list on the wall.", "names wall board", "list"),
        ("My brother had already bought the tickets.", "brother bought seats", "tickets"),
    ),
    _story(
        "shop",
        "customer",
        "A customer shouted at me for ten minutes over nothing.",
        "stayed polite to the end",
        ("It was about a coupon that had expired.", "voucher discount expired", "coupon"),
        ("There was a long queue, and all of them watched.", "line people watched", "queue"),
        ("My manager gave him a present and me a warning.", "manager gift warned", "warning"),
    ),
    _story(
        "pet",
        "vet",
        "We had to say goodbye to our dog this morning.",
        "held him all the time",
        ("He had been limping since the winter.", "limp leg walking", "winter"),
        ("The vet said that we came too late.", "earlier sooner vet", "late"),
        ("His bowl is still in the kitchen.", "kitchen food empty", "bowl"),
    ),
    _story(
        "school",
        "son",
        "My son told me that he hates coming home.",
        "asked and did not shout",
        ("He said it in the supermarket, in front of strangers.", "shop strangers store", "supermarket"),
        ("I have worked nights for a year.", "night shift shifts", "nights"),
        ("He has put a lock on his room.", "locked room bedroom", "lock"),
    ),
    _story(
        "money",
        "cousin",
        "My cousin still has not paid me back.",
        "helped without asking for a paper",
        ("It was for her rent, she said.", "flat apartment landlord", "rent"),
        ("Then I saw her holiday on the beach.", "beach trip vacation", "holiday"),
        ("I had to sell my bicycle.", "bike sold selling", "bicycle"),
    ),
    _story(
        "art",
        "jury",
        "My paintings came back from the competition without a word.",
        "finished all seven",
        ("One of the frames was broken.", "frame broken glass", "frame"),
        ("I painted each of them before sunrise.", "morning early dawn", "sunrise"),
        ("My husband asked whether I could do something useful now.", "husband partner useful", "husband"),
    ),
)
"""All of them."""
