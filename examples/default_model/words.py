"""The word lists that the generated conversations draw from, and invented words beside them.

What matters is that a model cannot get by on memory: names and values are drawn anew every time, many are invented,
and some nouns and cities are held out: they appear in evaluation only.
"""

from __future__ import annotations

import random


def _split(text: str) -> list[str]:
    return text.split()


NOUNS = _split("""
    weather time forecast temperature price stock news email message calendar event meeting reminder note file folder
    image photo song playlist movie book recipe route distance map flight hotel ticket order invoice account balance
    payment user profile contact task project issue branch commit release server log status job queue backup sensor
    light thermostat door camera alarm device battery network domain page article translation definition synonym
    population currency rate tax salary loan score player team match tournament product inventory shipment package
    address phone country capital language word sentence number sum average factor color shape size weight height
    speed volume area record table column query database schema index token session report chart summary review
    comment rating post tag category label wallet menu seat room booking appointment doctor patient lab vaccine
    course student grade lesson quiz exchange humidity traffic parking bus train museum concert coupon discount
    license contract customer supplier warehouse robot printer screen window heater pump garden recipe meal calorie
    workout heartbeat sleep step budget expense receipt bill donation gift wish poem story joke fact quote riddle
""")
HELD_NOUNS = _split("""
    tide pollen horoscope mortgage parcel lottery badge warranty firmware glacier volcano subtitle podcast antenna
    passport orchard beehive telescope elevator sauna ferry harbour fossil satellite turbine recycling curfew
""")
VERBS = _split("""
    get find fetch lookup search read show list check compute count create send set open start stop delete update
    play load run query convert track measure book add remove save cancel download upload share rename
""")
CITIES = _split("""
    Paris London Tokyo Berlin Madrid Rome Oslo Cairo Lima Delhi Seoul Dublin Vienna Prague Warsaw Lisbon Athens
    Boston Chicago Denver Seattle Austin Toronto Sydney Beijing Moscow Istanbul Nairobi Lagos Havana Bogota Santiago
    Zurich Geneva Milan Munich Hamburg Lyon Porto Osaka Kyoto Mumbai Bangkok Hanoi Manila Jakarta Singapore Dubai
    Doha Helsinki Stockholm Copenhagen Brussels Amsterdam Zürich Málaga Tromsø
""") + [
    "New York",
    "San Francisco",
    "Los Angeles",
    "Buenos Aires",
    "Hong Kong",
    "Mexico City",
    "Cape Town",
    "São Paulo",
]
HELD_CITIES = _split("""
    Reykjavik Montevideo Ljubljana Tbilisi Quito Accra Antwerp Nagoya Perth Winnipeg Tallinn Bergen Malmö Tampere
""") + ["Port Louis", "Saint Denis", "Santa Fe", "Addis Ababa"]
PEOPLE = _split("""
    Alice Bob Carol David Emma Frank Grace Henry Irene Jack Karen Leo Maria Nora Oscar Paul Rita Sam Tom Victor
    Anna Ben Clara Daniel Eva Felix Hanna Ivan Julia Kevin Laura Mark Nina Peter Rosa Simon Tina
""")
WORDS = _split("""
    buy milk call mum water plants blue red green big small new old fast slow team lunch pay rent report fix bug
    clean house walk dog cat sat on mat sunny rainy cloudy windy snow cold warm open closed ready done failed pending
    running paid free busy north south east west gold silver iron stone river mountain lake forest garden kitchen
    office school market station bridge tower castle island harbor winter summer spring autumn morning evening night
    hello world happy birthday good luck see you soon dinner at home bread eggs coffee tea sugar chess guitar piano
    history science music best cheap near quiet strong light dark sweet fresh early late tomorrow yesterday monday
    friday the a my our meeting moved project started finished train left arrived thank love peace war king queen
""")
LANGUAGES = _split(
    "French German Spanish Italian Dutch Polish Greek Turkish Arabic Hindi Japanese Korean Russian Latin"
)
CURRENCIES = _split("USD EUR GBP JPY CHF CAD AUD SEK NOK PLN INR BRL")
UNITS = _split("celsius fahrenheit km miles meters feet kg pounds liters gallons hours minutes seconds days")
PARAMS: dict[str, str] = {
    "city": "city", "location": "city", "country": "name", "title": "phrase", "name": "name", "id": "code",
    "query": "phrase", "date": "date", "unit": "word", "count": "int", "limit": "int", "amount": "number",
    "path": "path", "url": "url", "text": "phrase", "content": "phrase", "user": "name", "email": "email",
    "currency": "upper", "code": "code", "symbol": "upper", "start": "any", "end": "any", "year": "int",
    "month": "any", "day": "any", "hour": "int", "zone": "any", "format": "word", "language": "language",
    "mode": "word", "level": "int", "type": "word", "size": "any", "width": "number", "height": "number",
    "key": "any", "value": "any", "label": "any", "topic": "phrase", "category": "word", "region": "city",
    "address": "phrase", "phone": "digits", "subject": "phrase", "body": "phrase", "message": "phrase",
    "priority": "word", "status": "word", "page": "int", "index": "int", "offset": "int", "speed": "number",
    "angle": "number", "color": "word", "time": "time", "zip": "digits", "owner": "name", "target": "any",
    "source": "any", "filter": "any", "quantity": "int", "radius": "number", "weight": "number", "max_results": "int",
    "user_id": "code", "file_name": "path", "order_id": "code", "start_date": "date", "end_date": "date",
}  # fmt: skip
FLAGS = _split("urgent verbose recursive private public active enabled silent notify force dry_run archived metric")
_ONSETS = _split("b c d f g h j k l m n p r s t v w z br ch cr dr fl gr kl pr sh st th tr")
_NUCLEI = _split("a e i o u ai ea io oo")


def invented(rng: random.Random, syllables: int | None = None) -> str:
    """A word that no one has seen before: `braimok`, `shutea`."""
    count = syllables or rng.randint(2, 3)
    body = "".join(rng.choice(_ONSETS) + rng.choice(_NUCLEI) for _ in range(count))
    return body + (rng.choice("nrslkmtx") if rng.random() < 0.5 else "")


def noun(rng: random.Random, held_out: bool) -> str:
    """A tool's noun. Held-out conversations take 60 % of theirs from words that training never shows."""
    if held_out and rng.random() < 0.6:
        return rng.choice(HELD_NOUNS)
    return invented(rng) if rng.random() < 0.35 else rng.choice(NOUNS)
