"""60 more tasks with a form, each with its answer: written after the layout of JSON was settled, then asked."""

from typing import Any

from schema_tasks import BOOLEAN, INTEGER, NUMBER, STRING, Schema, Task, one_of, record, rows

_PARCEL = record(sender=STRING, kilograms=NUMBER, country=STRING)
_RECIPE = record(dish=STRING, minutes=INTEGER, servings=INTEGER)
_JOB = record(name=STRING, job=STRING, company=STRING)
_TRIP = record(start=STRING, end=STRING, kilometres=INTEGER)
_GOAL = record(player=STRING, minute=INTEGER, team=STRING)
_DATE: Schema = record(date={"type": "string", "format": "date"})
_SIZES: Schema = {"type": "object", "additionalProperties": INTEGER}
_PLACES: Schema = {"type": "object", "additionalProperties": STRING}
_PEOPLE: Schema = record(people=rows(record(name=STRING, age=INTEGER)))
_ORDER: Schema = record(customer=record(name=STRING, city=STRING), items=rows(record(article=STRING, count=INTEGER)))

_ROWS: list[tuple[str, str, Schema, Any]] = [
    (
        "extraction",
        "A parcel of 2.5 kg from Olga is on its way to Norway.",
        _PARCEL,
        {"sender": "Olga", "kilograms": 2.5, "country": "Norway"},
    ),
    (
        "extraction",
        "To Spain: 11 kilograms, sent by Marek.",
        _PARCEL,
        {"sender": "Marek", "kilograms": 11, "country": "Spain"},
    ),
    ("extraction", "Lena sent 0.8 kg to Chile.", _PARCEL, {"sender": "Lena", "kilograms": 0.8, "country": "Chile"}),
    (
        "extraction",
        "The parcel for Japan weighs 4 kg; its sender is Tariq.",
        _PARCEL,
        {"sender": "Tariq", "kilograms": 4, "country": "Japan"},
    ),
    ("extraction", "Goulash for 6 takes 90 minutes.", _RECIPE, {"dish": "goulash", "minutes": 90, "servings": 6}),
    (
        "extraction",
        "In 15 minutes you have pancakes for 3 people.",
        _RECIPE,
        {"dish": "pancakes", "minutes": 15, "servings": 3},
    ),
    (
        "extraction",
        "This lentil soup serves 4 and needs 40 minutes.",
        _RECIPE,
        {"dish": "lentil soup", "minutes": 40, "servings": 4},
    ),
    (
        "extraction",
        "Bake the apple pie for 55 minutes; it is enough for 8.",
        _RECIPE,
        {"dish": "apple pie", "minutes": 55, "servings": 8},
    ),
    (
        "extraction",
        "Nadia works as a nurse at Clarion.",
        _JOB,
        {"name": "Nadia", "job": ("nurse", "a nurse"), "company": "Clarion"},
    ),
    (
        "extraction",
        "Veltro has hired Simon as its accountant.",
        _JOB,
        {"name": "Simon", "job": ("accountant", "an accountant"), "company": "Veltro"},
    ),
    (
        "extraction",
        "The driver Bruno left Haldex.",
        _JOB,
        {"name": "Bruno", "job": ("driver", "the driver"), "company": "Haldex"},
    ),
    (
        "extraction",
        "At Mirano, Greta is an electrician.",
        _JOB,
        {"name": "Greta", "job": ("electrician", "an electrician"), "company": "Mirano"},
    ),
    (
        "extraction",
        "From Turin to Genoa it is 170 kilometres.",
        _TRIP,
        {"start": "Turin", "end": "Genoa", "kilometres": 170},
    ),
    (
        "extraction",
        "We drove 62 km, from Ghent to Bruges.",
        _TRIP,
        {"start": "Ghent", "end": "Bruges", "kilometres": 62},
    ),
    (
        "extraction",
        "The trip starts in Cork and ends, 260 km later, in Dublin.",
        _TRIP,
        {"start": "Cork", "end": "Dublin", "kilometres": 260},
    ),
    (
        "extraction",
        "Krakow lies 295 km behind Warsaw, where we begin.",
        _TRIP,
        {"start": "Warsaw", "end": "Krakow", "kilometres": 295},
    ),
    ("extraction", "In minute 67 Okafor scored for Leeds.", _GOAL, {"player": "Okafor", "minute": 67, "team": "Leeds"}),
    ("extraction", "Goal for Porto! Silva, minute 12.", _GOAL, {"player": "Silva", "minute": 12, "team": "Porto"}),
    (
        "extraction",
        "Brandt (Mainz) scored in the 88th minute.",
        _GOAL,
        {"player": "Brandt", "minute": 88, "team": "Mainz"},
    ),
    (
        "extraction",
        "Parma leads since minute 31, thanks to Conti.",
        _GOAL,
        {"player": "Conti", "minute": 31, "team": "Parma"},
    ),
    ("dates", "The contract was signed on 3 May 2021.", _DATE, {"date": "2021-05-03"}),
    ("dates", "Born 17 November 1988.", _DATE, {"date": "1988-11-17"}),
    ("dates", "Delivery: 2024/02/09.", _DATE, {"date": "2024-02-09"}),
    ("dates", "The concert on August 21st, 2025 is sold out.", _DATE, {"date": "2025-08-21"}),
    ("dates", "It happened on 1999-12-31.", _DATE, {"date": "1999-12-31"}),
    ("values", "What is 7 plus 5?", record(sum=INTEGER), {"sum": 12}),
    ("values", "How many days has a week?", record(days=INTEGER), {"days": 7}),
    ("values", "The bottle holds 0.75 litres.", record(litres=NUMBER), {"litres": 0.75}),
    ("values", "The room is 19 degrees warm, not 22.", record(degrees=INTEGER), {"degrees": 19}),
    ("values", "The lift is out of order. Does the lift work?", record(works=BOOLEAN), {"works": False}),
    ("values", "The shop is open today. Is it open?", record(open=BOOLEAN), {"open": True}),
    ("values", "A ticket costs 14.50 euros.", record(price=NUMBER), {"price": 14.5}),
    ("values", "The code of the door is 4471.", record(code=STRING), {"code": "4471"}),
    (
        "values",
        "Write to info@lumen.example.",
        record(mail={"type": "string", "format": "email"}),
        {"mail": "info@lumen.example"},
    ),
    ("values", "Page 212 of 300.", record(page=INTEGER, of=INTEGER), {"page": 212, "of": 300}),
    (
        "enums",
        "The sky is clear and it is hot.",
        record(weather=one_of("sunny", "rainy", "snowy")),
        {"weather": "sunny"},
    ),
    ("enums", "Take your umbrella!", record(weather=one_of("sunny", "rainy", "snowy")), {"weather": "rainy"}),
    ("enums", "A salmon is an animal of which kind?", record(kind=one_of("bird", "fish", "mammal")), {"kind": "fish"}),
    ("enums", "An eagle is an animal of which kind?", record(kind=one_of("bird", "fish", "mammal")), {"kind": "bird"}),
    ("enums", "The train is an hour late.", record(state=one_of("late", "early", "on time")), {"state": "late"}),
    ("enums", "This is the worst meal I ever had.", record(mood=one_of("positive", "negative")), {"mood": "negative"}),
    ("enums", "I love this lamp, thank you!", record(mood=one_of("positive", "negative")), {"mood": "positive"}),
    (
        "enums",
        "Lisbon is the capital of which country?",
        record(country=one_of("Spain", "Portugal", "Italy")),
        {"country": "Portugal"},
    ),
    ("lists", "We need eggs, milk and flour.", record(shopping=rows(STRING)), {"shopping": ["eggs", "milk", "flour"]}),
    ("lists", "The winning numbers are 4, 18 and 33.", record(numbers=rows(INTEGER)), {"numbers": [4, 18, 33]}),
    ("lists", "Present are Ida, Tom and Raj.", record(names=rows(STRING)), {"names": ["Ida", "Tom", "Raj"]}),
    ("lists", "The bus stops in Ulm and in Augsburg.", record(stops=rows(STRING)), {"stops": ["Ulm", "Augsburg"]}),
    ("lists", "Measured were 1.5, 2.5 and 3.25 metres.", record(metres=rows(NUMBER)), {"metres": [1.5, 2.5, 3.25]}),
    ("maps", "The tower has 80 metres, the bridge 45. Give each one's metres.", _SIZES, {"tower": 80, "bridge": 45}),
    ("maps", "Eva sits in room 4, Jan in room 9. Give each person's room.", _SIZES, {"Eva": 4, "Jan": 9}),
    ("maps", "Mia lives in Rome and Leo in Nice. Give each person's city.", _PLACES, {"Mia": "Rome", "Leo": "Nice"}),
    ("maps", "Red means stop, green means go. Give each colour's meaning.", _PLACES, {"red": "stop", "green": "go"}),
    (
        "nested",
        "The children are Finn (4) and Lotte (7).",
        _PEOPLE,
        {"people": [{"name": "Finn", "age": 4}, {"name": "Lotte", "age": 7}]},
    ),
    (
        "nested",
        "Olaf is 61, his wife Runa 58.",
        _PEOPLE,
        {"people": [{"name": "Olaf", "age": 61}, {"name": "Runa", "age": 58}]},
    ),
    ("nested", "Only Kofi, 26, came.", _PEOPLE, {"people": [{"name": "Kofi", "age": 26}]}),
    (
        "nested",
        "Sara from Basel orders 2 lamps.",
        _ORDER,
        {"customer": {"name": "Sara", "city": "Basel"}, "items": [{"article": ("lamp", "lamps"), "count": 2}]},
    ),
    (
        "nested",
        "Paul in Bonn wants 3 pens and 1 ruler.",
        _ORDER,
        {
            "customer": {"name": "Paul", "city": "Bonn"},
            "items": [{"article": ("pen", "pens"), "count": 3}, {"article": ("ruler", "rulers"), "count": 1}],
        },
    ),
    (
        "nested",
        "Goal by Reyes in minute 9: 1 to 0 for Sevilla.",
        record(goal=_GOAL, score=record(home=INTEGER, away=INTEGER)),
        {"goal": {"player": "Reyes", "minute": 9, "team": "Sevilla"}, "score": {"home": 1, "away": 0}},
    ),
    (
        "nested",
        "Dana is a pilot at Norwind; her parcel to Peru weighs 3 kg.",
        record(person=_JOB, parcel=_PARCEL),
        {
            "person": {"name": "Dana", "job": ("pilot", "a pilot"), "company": "Norwind"},
            "parcel": {"sender": "Dana", "kilograms": 3, "country": "Peru"},
        },
    ),
    (
        "nested",
        "The soup takes 20 minutes and serves 2; the roast takes 120 and serves 5.",
        record(soup=record(minutes=INTEGER, servings=INTEGER), roast=record(minutes=INTEGER, servings=INTEGER)),
        {"soup": {"minutes": 20, "servings": 2}, "roast": {"minutes": 120, "servings": 5}},
    ),
]

TASKS = [
    Task(kind, f"{text}\n\nTake the facts from this text." if kind == "extraction" else text, schema, right)
    for kind, text, schema, right in _ROWS
]
