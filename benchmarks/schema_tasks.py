"""120 tasks whose answer has a form: ten of each of twelve kinds, each with a question and maybe its answer."""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}


class Task(NamedTuple):
    """A question and the schema of its answer.

    `right` is the part of the value that is judged: in an object only the members named, in a list the items in any
    order; a tuple lists alternatives. None: whether an answer is right is not judged. `model` is a pydantic model
    instead of a schema; without either the answer is any JSON object.
    """

    kind: str
    question: str
    schema: Schema | None = None
    right: Any = None
    model: type[BaseModel] | None = None


def record(**properties: Any) -> Schema:
    """Returns an object's schema with these members, all required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def some_of(**properties: Any) -> Schema:
    """Returns an object's schema with these members, none required."""
    return {"type": "object", "properties": properties}


def text(least: int | None = None, most: int | None = None, **more: Any) -> Schema:
    """Returns a string's schema with this least and most length."""
    bounds = {"minLength": least, "maxLength": most}
    return {"type": "string", **{key: value for key, value in bounds.items() if value is not None}, **more}


def whole(least: int | None = None, most: int | None = None, **more: Any) -> Schema:
    """Returns an integer's schema with these bounds."""
    bounds = {"minimum": least, "maximum": most}
    return {"type": "integer", **{key: value for key, value in bounds.items() if value is not None}, **more}


def number(least: float | None = None, most: float | None = None) -> Schema:
    """Returns a number's schema with these bounds."""
    bounds = {"minimum": least, "maximum": most}
    return {"type": "number", **{key: value for key, value in bounds.items() if value is not None}}


def rows(item: Schema, least: int | None = None, most: int | None = None, **more: Any) -> Schema:
    """Returns a list's schema with this least and most length."""
    bounds = {"minItems": least, "maxItems": most}
    kept = {key: value for key, value in bounds.items() if value is not None}
    return {"type": "array", "items": item, **kept, **more}


def table(value: Schema, **more: Any) -> Schema:
    """Returns the schema of a map from any key to such values."""
    return {"type": "object", "additionalProperties": value, **more}


def one_of(*values: Any) -> Schema:
    """Returns the schema of one of these values."""
    return {"enum": list(values)}


def form(name: str) -> Schema:
    """Returns the schema of a string in a format of JSON Schema."""
    return {"type": "string", "format": name}


def pattern(expression: str) -> Schema:
    """Returns the schema of a string that matches."""
    return {"type": "string", "pattern": expression}


def either(*schemas: Schema, word: str = "anyOf") -> Schema:
    """Returns the schema of what fits one of these."""
    return {word: list(schemas)}


NOTHING: Schema = {"type": "null"}


def _kind(kind: str, *rows: tuple[Any, ...]) -> list[Task]:
    return [Task(kind, *row) for row in rows]


STRINGS = _kind(
    "strings",
    ("Anna lives in Bergen. Give the name and the city.", record(name=STRING, city=STRING),
     {"name": "Anna", "city": "Bergen"}),
    ("Write a title for a story about a lost dog.", record(title=text(3, 60))),
    ("Write one sentence about the sea.", record(sentence=STRING)),
    ("Summarise: The shop on Mill Street closed after forty years because its owner retired.", record(summary=STRING)),
    ("Describe a sunny day in at most 100 characters.", record(description=text(10, 100))),
    ("Translate 'good morning' into French.", record(translation=text(1, 40))),
    ("The book 'Emma' was written by Jane Austen. Who wrote it?", record(author=STRING), {"author": "Jane Austen"}),
    ("Give a greeting.", text(1, 50)),
    ("Explain in one sentence why leaves are green.", STRING),
    ("A pet shop needs a slogan and an advertisement of two sentences.", record(slogan=text(5, 80), advert=STRING)),
)  # fmt: skip

ENUMS = _kind(
    "enums",
    ("'I love this phone!' What is the mood?", record(mood=one_of("positive", "negative", "neutral")),
     {"mood": "positive"}),
    ("'The soup was cold and the waiter was rude.' What is the mood?",
     record(mood=one_of("positive", "negative", "neutral")), {"mood": "negative"}),
    ("Is the sky blue on a clear day?", record(answer=one_of("yes", "no")), {"answer": "yes"}),
    ("What colour is grass?", one_of("red", "green", "blue"), "green"),
    ("Is a whale a fish?", record(is_fish=BOOLEAN), {"is_fish": False}),
    ("The ticket says: printer on floor 3 is on fire. How urgent is it?",
     record(priority=one_of("low", "medium", "high"), closed=BOOLEAN), {"priority": "high", "closed": False}),
    ("How many legs has a spider?", record(legs=one_of(4, 6, 8)), {"legs": 8}),
    ("Which day follows Monday?",
     one_of("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"), "Tuesday"),
    ("The mail says: 'You won a million, click here!' Which folder?",
     record(folder=one_of("inbox", "spam"), version={"const": 2}), {"folder": "spam", "version": 2}),
    ("A parcel from Rome weighs 3 kg. Choose the size and the continent of origin.",
     record(size=one_of("S", "M", "L", None), continent=one_of("Africa", "America", "Asia", "Europe")),
     {"continent": "Europe"}),
)  # fmt: skip

INTEGERS = _kind(
    "integers",
    ("Tom is 34 years old. How old is Tom?", record(age=INTEGER), {"age": 34}),
    ("There were 12 apples and 5 pears. Count both.", record(apples=INTEGER, pears=INTEGER),
     {"apples": 12, "pears": 5}),
    ("What is 7 plus 5?", record(sum=INTEGER), {"sum": 12}),
    ("The tower was built in 1889. In which year?", record(year=whole(1000, 2100)), {"year": 1889}),
    ("Rate the film from 1 to 5: 'The best I have seen this year.'", record(stars=whole(1, 5)), {"stars": 5}),
    ("How many people live in a town of about twenty thousand?", record(population=INTEGER), {"population": 20000}),
    ("Pick an even number below 100.", record(number=whole(0, 98, multipleOf=2))),
    ("The temperature fell to -15 degrees.", record(degrees=INTEGER), {"degrees": -15}),
    ("How many seconds has an hour?", INTEGER, 3600),
    ("Order 1042: 3 chairs at 89 euros each. Give the order number, the quantity and the price of one.",
     record(order=INTEGER, quantity=INTEGER, price=INTEGER), {"order": 1042, "quantity": 3, "price": 89}),
)  # fmt: skip

NUMBERS = _kind(
    "numbers",
    ("The coffee costs 2.50 euros. What is the price?", record(price=NUMBER), {"price": 2.5}),
    ("What is pi to two digits?", record(pi=NUMBER), {"pi": 3.14}),
    ("Half of three is", NUMBER, 1.5),
    ("How sure are you that water is wet, from 0 to 1?", record(confidence=number(0, 1))),
    ("Oslo lies at latitude 59.91 and longitude 10.75.", record(latitude=number(-90, 90), longitude=number(-180, 180)),
     {"latitude": 59.91, "longitude": 10.75}),
    ("The parcel weighs 1.2 kg and is 30.5 cm long.", record(weight=NUMBER, length=NUMBER),
     {"weight": 1.2, "length": 30.5}),
    ("One third as a decimal number.", record(value=NUMBER)),
    ("The speed of light in metres per second.", record(speed=NUMBER)),
    ("The share rose by 4.75 percent to 103.2.", record(change=NUMBER, price=NUMBER), {"change": 4.75, "price": 103.2}),
    ("The mass of an electron in kilograms is 9.109e-31.", record(mass=NUMBER), {"mass": 9.109e-31}),
)  # fmt: skip

LISTS = _kind(
    "lists",
    ("Name three primary colours.", record(colours=rows(STRING, 3, 3)), {"colours": ["red", "yellow", "blue"]}),
    ("List the fruits: apple, pear and plum are in the basket.", record(fruits=rows(STRING)),
     {"fruits": ["apple", "pear", "plum"]}),
    ("The first five even numbers.", rows(INTEGER, 5, 5), [2, 4, 6, 8, 10]),
    ("List some animals that live in the sea.", record(animals=rows(STRING))),
    ("Write a shopping list for pancakes.", rows(STRING)),
    ("Give keywords: 'Solar panels turn sunlight into electricity.'", record(keywords=rows(text(1, 20), 1, 5))),
    ("The scores were 7, 9 and 4.", record(scores=rows(whole(0, 10), 1, 10)), {"scores": [7, 9, 4]}),
    ("Count from 1 to 10.", rows(INTEGER), list(range(1, 11))),
    ("Is each a planet: Mars, Moon, Venus? Answer in this order.", rows(BOOLEAN, 3, 3), [True, False, True]),
    ("Name the days of the weekend.", rows(one_of("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"), 2, 2),
     ["Sat", "Sun"]),
)  # fmt: skip

MAPS = _kind(
    "maps",
    ("Anna is 31 and Ben is 28. Give each person's age.", table(INTEGER), {"Anna": 31, "Ben": 28}),
    ("Translate into German: cat, dog, bird.", table(STRING)),
    ("Prices: tea 2 euros, cake 4 euros.", record(prices=table(NUMBER)), {"prices": {"tea": 2, "cake": 4}}),
    ("Capitals of France, Italy and Spain.", record(capitals=table(STRING)),
     {"capitals": {"France": "Paris", "Italy": "Rome", "Spain": "Madrid"}}),
    ("Which of these can fly: eagle, dog, bee?", table(BOOLEAN), {"eagle": True, "dog": False, "bee": True}),
    ("Stock: 10 bolts, 25 nuts, 3 drills.", record(stock=table(whole(0, 1000))),
     {"stock": {"bolts": 10, "nuts": 25, "drills": 3}}),
    ("Give at most three settings of a lamp.", table(STRING, maxProperties=3)),
    ("Group by kind: carrot, apple, potato, plum.", table(rows(STRING))),
    ("Opening hours of a shop for each weekday.", table(text(1, 20))),
    ("Scores by team: Reds 3, Blues 1.", record(title=STRING, scores=table(INTEGER)),
     {"scores": {"Reds": 3, "Blues": 1}}),
)  # fmt: skip

_PERSON = record(name=STRING, age=INTEGER)
_TREE: Schema = {
    "$defs": {"node": record(name=STRING, children=rows({"$ref": "#/$defs/node"}))},
    "$ref": "#/$defs/node",
}

NESTED = _kind(
    "nested",
    ("Maria, 40, lives at 5 Hill Road in Leeds.",
     record(person=_PERSON, address=record(street=STRING, city=STRING)),
     {"person": {"name": "Maria", "age": 40}, "address": {"city": "Leeds"}}),
    ("The team: Ali (22) and Sue (35).", record(team=rows(_PERSON)),
     {"team": [{"name": "Ali", "age": 22}, {"name": "Sue", "age": 35}]}),
    ("Order from Kim: 2 pens, 1 book.",
     record(customer=STRING, items=rows(record(product=STRING, quantity=whole(1, 99)), 1, 5)),
     {"customer": "Kim", "items": [{"product": ("pen", "pens"), "quantity": 2}, {"product": "book", "quantity": 1}]}),
    ("A folder 'docs' with two files, a.txt and b.txt.", _TREE),
    ("Plan a menu of three courses.",
     record(starter=record(dish=STRING), main=record(dish=STRING, side=STRING), dessert=record(dish=STRING))),
    ("The flight LH123 leaves Berlin for Rome at gate 7.",
     record(flight=record(number=STRING, gate=INTEGER), route=record(start=STRING, end=STRING)),
     {"flight": {"number": "LH123", "gate": 7}, "route": {"start": "Berlin", "end": "Rome"}}),
    ("A recipe for scrambled eggs.",
     record(title=STRING, ingredients=rows(record(name=STRING, amount=STRING)), steps=rows(STRING))),
    ("The square has corners (0,0), (0,2), (2,2) and (2,0).",
     record(shape=STRING, corners=rows(record(x=INTEGER, y=INTEGER), 4, 4)),
     {"corners": [{"x": 0, "y": 0}, {"x": 0, "y": 2}, {"x": 2, "y": 2}, {"x": 2, "y": 0}]}),
    ("Ada Lovelace was born in London in 1815.",
     record(who=record(first=STRING, last=STRING), born=record(place=STRING, year=INTEGER)),
     {"who": {"first": "Ada", "last": "Lovelace"}, "born": {"place": "London", "year": 1815}}),
    ("A survey with one question and three choices.",
     record(survey=record(questions=rows(record(text=STRING, choices=rows(STRING, 3, 3)), 1, 1)))),
)  # fmt: skip

_CARD = record(kind={"const": "card"}, digits=text(4, 4))
_CASH = record(kind={"const": "cash"}, amount=NUMBER)

UNIONS = _kind(
    "unions",
    ("Paul has no middle name.", record(first=STRING, middle=either(STRING, NOTHING)),
     {"first": "Paul", "middle": None}),
    ("She paid 20 euros in cash.", either(_CARD, _CASH), {"kind": "cash", "amount": 20}),
    ("He paid with the card that ends with 4242.", either(_CARD, _CASH, word="oneOf"),
     {"kind": "card", "digits": "4242"}),
    ("The room number is 12.", record(room=either(INTEGER, STRING)), {"room": (12, "12")}),
    ("Draw a circle of radius 3.",
     either(record(circle=record(radius=NUMBER)), record(square=record(side=NUMBER))), {"circle": {"radius": 3}}),
    ("Nobody knows the age of the tree.", record(age={"type": ["integer", "null"]}), {"age": None}),
    ("Contact Eva by mail: eva@example.org.",
     record(name=STRING, contact=either(record(mail=STRING), record(phone=STRING))),
     {"name": "Eva", "contact": {"mail": "eva@example.org"}}),
    ("List: 1, two, 3.", rows(either(INTEGER, STRING), 1, 6), [1, "two", 3]),
    ("Answer with true or a reason: Is 9 a prime number?", either(BOOLEAN, STRING)),
    ("The light is on.", record(state=either(one_of("on", "off"), NOTHING), dimmed=either(NUMBER, NOTHING)),
     {"state": "on"}),
)  # fmt: skip

PATTERNS = _kind(
    "patterns",
    ("The licence plate is B-AX 1234.", record(plate=pattern(r"^[A-Z]{1,3}-[A-Z]{1,2} [0-9]{1,4}$")),
     {"plate": "B-AX 1234"}),
    ("Give the hex code of the colour red.", record(colour=pattern("^#[0-9A-F]{6}$")), {"colour": "#FF0000"}),
    ("The version is 2.10.3.", record(version=pattern(r"^\d+\.\d+\.\d+$")), {"version": "2.10.3"}),
    ("Call me at 555-0142.", record(phone=pattern(r"^\d{3}-\d{4}$")), {"phone": "555-0142"}),
    ("Make a user name for John Smith.", record(user=pattern("^[a-z]{3,12}$"))),
    ("The flight is BA249.", record(flight=pattern("^[A-Z]{2}[0-9]{1,4}$")), {"flight": "BA249"}),
    ("A name for a variable that counts apples.", record(name=pattern("^[a-z_]+$"))),
    ("The postcode is 10115.", pattern("^[0-9]{5}$"), "10115"),
    ("Two initials of Marie Curie.", record(initials=pattern(r"^[A-Z]\.[A-Z]\.$")), {"initials": "M.C."}),
    ("Give tags for a picture of a beach.", record(tags=rows(pattern("^[a-z]+(-[a-z]+)?$"), 1, 4))),
)  # fmt: skip

FORMATS = _kind(
    "formats",
    ("The meeting is on 3 May 2024.", record(date=form("date")), {"date": "2024-05-03"}),
    ("The train leaves at 14:30.", record(train=STRING, time=form("time"))),
    ("Write to Lena: lena@example.com.", record(mail=form("email")), {"mail": "lena@example.com"}),
    ("The server has the address 192.168.0.10.", record(address=form("ipv4")), {"address": "192.168.0.10"}),
    ("The page is https://example.com/start.", record(link=form("uri")), {"link": "https://example.com/start"}),
    ("Make an identifier.", record(id=form("uuid"))),
    ("It began on 1 January 2020 at noon, UTC.", record(begin=form("date-time"))),
    ("The host is called mail.example.org.", record(host=form("hostname")), {"host": "mail.example.org"}),
    ("The film takes two hours.", record(duration=form("duration"))),
    ("Holidays: 25 December 2023 and 1 January 2024.", record(days=rows(form("date"), 1, 4)),
     {"days": ["2023-12-25", "2024-01-01"]}),
)  # fmt: skip


class City(BaseModel):
    name: str
    country: str
    inhabitants: int


class Review(BaseModel):
    mood: Literal["glad", "sad", "calm"]
    stars: Annotated[int, Field(ge=1, le=5)]
    reasons: list[str]


class Item(BaseModel):
    product: str
    quantity: int
    price: float


class Invoice(BaseModel):
    number: str
    items: list[Item]
    paid: bool = False


class Event(BaseModel):
    title: str
    place: str | None = None
    guests: Annotated[list[str], Field(max_length=5)]


class Point(BaseModel):
    x: float
    y: float


class Route(BaseModel):
    start: Point
    end: Point
    distance: float


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str
    barks: bool


class Cat(BaseModel):
    kind: Literal["cat"]
    name: str
    lives: int


class Pet(BaseModel):
    animal: Annotated[Dog | Cat, Field(discriminator="kind")]


class Settings(BaseModel):
    theme: Literal["dark", "light"] = "dark"
    size: Annotated[int, Field(ge=8, le=32)] = 12
    shortcuts: dict[str, str] = {}


class Ticket(BaseModel):
    subject: Annotated[str, Field(max_length=60)]
    urgent: bool
    labels: list[Literal["bug", "question", "idea"]]


class Steps(BaseModel):
    steps: list[str]
    answer: int


class Contact(BaseModel):
    first_name: str
    last_name: str
    mail: Annotated[str, Field(pattern=r"^[a-z.]+@[a-z.]+$")]


MODELS = [
    Task("pydantic", question, None, right, model)
    for question, right, model in (
        ("Paris, France, has 2100000 inhabitants.",
         {"name": "Paris", "country": "France", "inhabitants": 2100000}, City),
        ("'A wonderful evening, the food was great.' Judge the review.", {"mood": "glad"}, Review),
        ("Invoice A17: 2 lamps at 19.5 euros each, not paid.",
         {"number": "A17", "items": [{"product": ("lamp", "lamps"), "quantity": 2, "price": 19.5}]}, Invoice),
        ("A birthday party at home with Mia and Leo.", {"guests": ["Mia", "Leo"]}, Event),
        ("Go from (0, 0) to (3, 4); the distance is 5.",
         {"start": {"x": 0, "y": 0}, "end": {"x": 3, "y": 4}, "distance": 5}, Route),
        ("Rex is a dog who never barks.", {"animal": {"kind": "dog", "name": "Rex", "barks": False}}, Pet),
        ("Use the light theme in size 14.", {"theme": "light", "size": 14}, Settings),
        ("The program crashes when I press Save. Please help at once!", {"urgent": True}, Ticket),
        ("What is 12 times 3? Think in steps.", {"answer": 36}, Steps),
        ("Write to Nora Berg at nora.berg@example.org.",
         {"first_name": "Nora", "last_name": "Berg", "mail": "nora.berg@example.org"}, Contact),
    )
]  # fmt: skip

OBJECTS = _kind(
    "json_object",
    ("Give a JSON object with the name and the age of Tim, who is 7.", None, {"name": "Tim", "age": (7, "7")}),
    ("Answer as JSON: which city is the capital of Japan?",),
    ("Describe a bicycle as a JSON object.",),
    ("Turn into JSON: colour red, size 42, price 59.9.",),
    ("Give a JSON object with a list of three vegetables.",),
    ("As JSON: the order 55 contains 2 cups and 1 pot.",),
    ("A JSON object with the keys 'yes' and 'no' and a number for each.",),
    ("Write the settings of a phone as JSON.",),
    ("Give your answer as JSON: how many days has a week?",),
    ("Extract as JSON: Dr. Lee works at St. Mary's Hospital since 2011.",),
)  # fmt: skip

TASKS = [
    *STRINGS, *ENUMS, *INTEGERS, *NUMBERS, *LISTS, *MAPS, *NESTED, *UNIONS, *PATTERNS, *FORMATS, *MODELS, *OBJECTS,
]  # fmt: skip
