"""Tasks about a given text: 30 of extraction, 30 of classification, and 30 that one call of a tool does."""

from typing import Any, NamedTuple

from schema_tasks import BOOLEAN, INTEGER, NUMBER, STRING, Task, one_of, record

_PEOPLE = record(name=STRING, age=INTEGER, city=STRING)
_SALE = record(product=STRING, quantity=INTEGER, price=NUMBER)
_MEETING = record(topic=STRING, day=STRING, room=STRING)
_FLIGHT = record(number=STRING, origin=STRING, destination=STRING, gate=INTEGER)
_BOOK = record(title=STRING, author=STRING, year=INTEGER)

_EXTRACTIONS: list[tuple[str, dict[str, Any], Any]] = [
    ("Hanna, 29, moved to Graz last spring.", _PEOPLE, {"name": "Hanna", "age": 29, "city": "Graz"}),
    ("Our new colleague is Peter from Lyon; he is 45.", _PEOPLE, {"name": "Peter", "age": 45, "city": "Lyon"}),
    ("At 71, Rosa still runs her bakery in Porto.", _PEOPLE, {"name": "Rosa", "age": 71, "city": "Porto"}),
    ("Two years ago Yusuf turned 18 in Ankara; now he is 20.", _PEOPLE, {"name": "Yusuf", "age": 20, "city": "Ankara"}),
    ("Ingrid (52) sells flowers in Malmo.", _PEOPLE, {"name": "Ingrid", "age": 52, "city": "Malmo"}),
    ("From Kyoto comes Aiko, who is 33 years old.", _PEOPLE, {"name": "Aiko", "age": 33, "city": "Kyoto"}),
    ("We sold 4 lamps at 25 euros each.", _SALE, {"product": ("lamp", "lamps"), "quantity": 4, "price": 25}),
    ("Please send 12 notebooks, 1.75 euros a piece.", _SALE,
     {"product": ("notebook", "notebooks"), "quantity": 12, "price": 1.75}),
    ("One bicycle for 399 dollars.", _SALE, {"product": "bicycle", "quantity": 1, "price": 399}),
    ("She bought 3 tickets; each cost 8.5 pounds.", _SALE,
     {"product": ("ticket", "tickets"), "quantity": 3, "price": 8.5}),
    ("20 bricks at 0.6 euros.", _SALE, {"product": ("brick", "bricks"), "quantity": 20, "price": 0.6}),
    ("The price of a chair is 75 euros, and 6 chairs were ordered.", _SALE,
     {"product": ("chair", "chairs"), "quantity": 6, "price": 75}),
    ("The budget is discussed on Tuesday in room B2.", _MEETING, {"topic": ("budget", "the budget"), "day": "Tuesday",
                                                                  "room": ("B2", "room B2")}),
    ("Friday, room 14: safety training.", _MEETING, {"topic": "safety training", "day": "Friday",
                                                     "room": ("14", "room 14")}),
    ("Meet me in the library on Monday to talk about the exam.", _MEETING,
     {"topic": ("exam", "the exam"), "day": "Monday", "room": ("library", "the library")}),
    ("Wednesday's meeting about hiring takes place in the hall.", _MEETING,
     {"topic": "hiring", "day": "Wednesday", "room": ("hall", "the hall")}),
    ("The rehearsal is in the studio on Sunday.", _MEETING,
     {"topic": ("rehearsal", "the rehearsal"), "day": "Sunday", "room": ("studio", "the studio")}),
    ("On Thursday we plan the move, in office 301.", _MEETING,
     {"topic": ("move", "the move", "plan the move"), "day": "Thursday", "room": ("301", "office 301")}),
    ("KL881 from Amsterdam to Oslo boards at gate 22.", _FLIGHT,
     {"number": "KL881", "origin": "Amsterdam", "destination": "Oslo", "gate": 22}),
    ("Gate 5: IB302 to Madrid, coming from Lisbon.", _FLIGHT,
     {"number": "IB302", "origin": "Lisbon", "destination": "Madrid", "gate": 5}),
    ("Passengers of AF17 from Paris to New York, please go to gate 41.", _FLIGHT,
     {"number": "AF17", "origin": "Paris", "destination": "New York", "gate": 41}),
    ("Flight SK455 takes you from Bergen to Copenhagen, gate 9.", _FLIGHT,
     {"number": "SK455", "origin": "Bergen", "destination": "Copenhagen", "gate": 9}),
    ("Your flight from Vienna to Zurich, OS561, leaves from gate 13.", _FLIGHT,
     {"number": "OS561", "origin": "Vienna", "destination": "Zurich", "gate": 13}),
    ("TP66 to Brasilia, starting in Porto, now boards at gate 30.", _FLIGHT,
     {"number": "TP66", "origin": "Porto", "destination": "Brasilia", "gate": 30}),
    ("'Dracula' by Bram Stoker was published in 1897.", _BOOK,
     {"title": "Dracula", "author": "Bram Stoker", "year": 1897}),
    ("In 1847 Emily Bronte published 'Wuthering Heights'.", _BOOK,
     {"title": "Wuthering Heights", "author": "Emily Bronte", "year": 1847}),
    ("Mary Shelley wrote 'Frankenstein', which appeared in 1818.", _BOOK,
     {"title": "Frankenstein", "author": "Mary Shelley", "year": 1818}),
    ("1865 saw 'Alice in Wonderland' by Lewis Carroll.", _BOOK,
     {"title": "Alice in Wonderland", "author": "Lewis Carroll", "year": 1865}),
    ("The author of 'Ulysses' (1922) is James Joyce.", _BOOK,
     {"title": "Ulysses", "author": "James Joyce", "year": 1922}),
    ("'Moby Dick', 1851, is the best known book of Herman Melville.", _BOOK,
     {"title": "Moby Dick", "author": "Herman Melville", "year": 1851}),
]  # fmt: skip

_LABELS: dict[str, tuple[tuple[str, ...], list[tuple[str, str]]]] = {
    "What is the mood of this review?": (("positive", "negative"), [
        ("The best pizza I ever had, we will come back.", "positive"),
        ("It broke after two days and nobody answers my mails.", "negative"),
        ("A boring film, I fell asleep.", "negative"),
        ("Friendly staff and a wonderful view.", "positive"),
        ("What a waste of money.", "negative"),
        ("My children love this game.", "positive"),
        ("The room was dirty and loud.", "negative"),
        ("Fast delivery, perfect quality, thank you!", "positive"),
        ("I am very happy with these shoes.", "positive"),
        ("The worst service in town.", "negative"),
    ]),
    "Which topic has this sentence?": (("sports", "politics", "weather", "food"), [
        ("The striker scored twice in the final.", "sports"),
        ("Parliament passed the new tax law.", "politics"),
        ("Heavy rain and strong winds are expected tomorrow.", "weather"),
        ("Add the onions and fry them in butter.", "food"),
        ("The president met her ministers.", "politics"),
        ("It will snow in the mountains.", "weather"),
        ("She won the tennis match in three sets.", "sports"),
        ("This soup needs more salt.", "food"),
        ("The election takes place in May.", "politics"),
        ("The goalkeeper was injured in training.", "sports"),
    ]),
    "Which team should answer this mail?": (("billing", "technical", "sales"), [
        ("I was charged twice for the same month.", "billing"),
        ("The app crashes when I open it.", "technical"),
        ("Do you offer a discount for schools?", "sales"),
        ("Please send me a copy of my invoice.", "billing"),
        ("I forgot my password and cannot log in.", "technical"),
        ("We would like to buy 50 licences.", "sales"),
        ("The printer shows error 12.", "technical"),
        ("When will I get my refund?", "billing"),
        ("What does the bigger plan cost?", "sales"),
        ("The screen stays black after the update.", "technical"),
    ]),
}  # fmt: skip

TASKS = [
    *(Task("extraction", f"{said}\n\nTake the facts from this text.", schema, right)
      for said, schema, right in _EXTRACTIONS),
    *(Task("classification", f"{said}\n\n{question} {', '.join(labels)}?", one_of(*labels), label)
      for question, (labels, texts) in _LABELS.items() for said, label in texts),
]  # fmt: skip


class CallTask(NamedTuple):
    """A question, the tools, and the calls that answer it: each a name and, for each argument, the values allowed.

    `choice` is OpenAI's `tool_choice`, `parallel` whether several calls are asked for.
    """

    kind: str
    question: str
    tools: list[dict[str, Any]]
    calls: list[tuple[str, dict[str, list[Any]]]]
    choice: str
    parallel: bool = False


def _tool(name: str, about: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": about, "parameters": record(**parameters)}}


_TOOLS = {
    tool["function"]["name"]: tool
    for tool in (
        _tool("get_weather", "Returns the weather of a city.", city=STRING),
        _tool("send_mail", "Sends a mail.", to=STRING, subject=STRING),
        _tool("add", "Adds two numbers.", a=INTEGER, b=INTEGER),
        _tool("set_alarm", "Sets an alarm.", hour=INTEGER, minute=INTEGER),
        _tool("turn_light", "Turns the light of a room on or off.", room=STRING, on=BOOLEAN),
        _tool("convert", "Converts money.", amount=NUMBER, to=one_of("EUR", "USD", "GBP")),
        _tool("search", "Searches the web.", query=STRING),
        _tool("play", "Plays music of an artist.", artist=STRING, shuffle=BOOLEAN),
    )
}

_CALLS: list[tuple[str, str, dict[str, list[Any]]]] = [
    ("What is the weather in Paris?", "get_weather", {"city": ["Paris"]}),
    ("Is it raining in Oslo?", "get_weather", {"city": ["Oslo"]}),
    ("How warm is it in Cairo today?", "get_weather", {"city": ["Cairo"]}),
    ("Tell me the weather in Rome.", "get_weather", {"city": ["Rome"]}),
    ("Do I need an umbrella in London?", "get_weather", {"city": ["London"]}),
    ("Send a mail to bob@example.org with the subject Lunch.", "send_mail",
     {"to": ["bob@example.org"], "subject": ["Lunch"]}),
    ("Write to eva@example.com, subject Holiday.", "send_mail", {"to": ["eva@example.com"], "subject": ["Holiday"]}),
    ("Mail tim@example.org about the Report (subject: Report).", "send_mail",
     {"to": ["tim@example.org"], "subject": ["Report"]}),
    ("Add 3 and 4.", "add", {"a": [3], "b": [4]}),
    ("What is 12 plus 30?", "add", {"a": [12], "b": [30]}),
    ("Calculate the sum of 100 and 250.", "add", {"a": [100], "b": [250]}),
    ("Please add 7 and 8 for me.", "add", {"a": [7], "b": [8]}),
    ("Set an alarm for 6:30.", "set_alarm", {"hour": [6], "minute": [30]}),
    ("Wake me at 7:15.", "set_alarm", {"hour": [7], "minute": [15]}),
    ("I want to get up at 8:05, set the alarm.", "set_alarm", {"hour": [8], "minute": [5]}),
    ("Alarm at 22:45, please.", "set_alarm", {"hour": [22], "minute": [45]}),
    ("Turn on the light in the kitchen.", "turn_light", {"room": ["kitchen"], "on": [True]}),
    ("Switch off the bedroom light.", "turn_light", {"room": ["bedroom"], "on": [False]}),
    ("Light on in the garage.", "turn_light", {"room": ["garage"], "on": [True]}),
    ("Turn the light in the office off.", "turn_light", {"room": ["office"], "on": [False]}),
    ("Convert 20 to USD.", "convert", {"amount": [20], "to": ["USD"]}),
    ("How much is 15.5 in EUR?", "convert", {"amount": [15.5], "to": ["EUR"]}),
    ("Change 300 into GBP.", "convert", {"amount": [300], "to": ["GBP"]}),
    ("What are 99 in USD?", "convert", {"amount": [99], "to": ["USD"]}),
    ("Search the web for cheap flights.", "search", {"query": ["cheap flights"]}),
    ("Look up train times on the web.", "search", {"query": ["train times"]}),
    ("Search for pancake recipes.", "search", {"query": ["pancake recipes"]}),
    ("Play Mozart without shuffle.", "play", {"artist": ["Mozart"], "shuffle": [False]}),
    ("Play songs of Nina Simone, shuffled.", "play", {"artist": ["Nina Simone"], "shuffle": [True]}),
    ("Put on some Bach in random order (shuffle).", "play", {"artist": ["Bach"], "shuffle": [True]}),
]  # fmt: skip

CALLS = [
    CallTask("one call", question, [_TOOLS[name]], [(name, arguments)], "required")
    for question, name, arguments in _CALLS
]
