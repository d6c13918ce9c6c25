"""The tools that tutorials define, with requests as people type them.

A line is: recipe | tool names | descriptions | parameters | requests. Parameters are `name/alias:kind`, `?` marks an
optional one; a request gives exactly the parameters that it has in braces.
"""

from __future__ import annotations

import random
import re
from typing import Any

from toolbox import Param, Tool
from values import draw

_LINES = """
weather | get_weather, weather, get_current_weather, fetch_weather, check_weather | Get the weather of a city.; Current weather in a city; Returns the weather for a place | city/location/place/town:city, unit/units?:enum celsius fahrenheit | What is the weather in {city}?; How is the weather in {city}?; What's the weather like in {city}?; Weather in {city}; Tell me the weather in {city} in {unit}; What is the weather in {city} in {unit}?; weather {city}?; How's the weather in {city} today?; Is it raining in {city}? Check the weather.
forecast | get_forecast, weather_forecast, forecast | Get the forecast for some days.; Weather forecast | city/location:city, days?:small | Give me the forecast for {city}; Show the {days} day forecast for {city}.; What is the forecast for {city} for the next {days} days?; Forecast for {city}, {days} days
time | get_time, current_time, get_current_time, time_in | Get the current time.; Current time in a city | city/timezone/location:city | What time is it in {city}?; What is the time in {city}?; Tell me the time in {city}; Current time in {city}?
clock | now, get_time_now, get_date, today | The date and time now.; Returns the current date | | What time is it?; What is the date today?; What day is it?
calculator | calculator, calculate, calc, evaluate, math | Evaluate a math expression.; Calculate an expression; A simple calculator | expression/expr/formula/query:expression | What is {expression}?; Calculate {expression}; Compute {expression}.; How much is {expression}?; {expression} = ?; What's {expression}?; Please evaluate {expression}; {expression}
multiply | multiply, multiply_numbers, mul | Multiply two numbers.; Multiplies a and b | a/x/first:int, b/y/second:int | Multiply {a} by {b}.; What is {a} times {b}?; What is {a} * {b}?; {a} * {b}; {a} x {b}?; multiply {a} and {b}
add | add, add_numbers, sum_two | Add two numbers.; Adds a and b | a/x/first:int, b/y/second:int | Add {a} and {b}.; What is {a} plus {b}?; What is {a} + {b}?; {a} + {b}; add {a} to {b}
subtract | subtract, minus, subtract_numbers | Subtract two numbers.; a minus b | a/x/first:int, b/y/second:int | What is {a} minus {b}?; {a} - {b}; What is {a} - {b}?; subtract: {a} minus {b}
divide | divide, div, divide_numbers | Divide two numbers.; a divided by b | a/x/first:int, b/y/second:int | Divide {a} by {b}.; What is {a} divided by {b}?; {a} / {b}; What is {a} / {b}?
timer | set_timer, start_timer, timer | Set a timer.; Start a countdown timer | minutes/duration_minutes:small, label/name?:word | Set a timer for {minutes} minutes; Start a timer for {minutes} minutes.; Timer {minutes} minutes; Set a {minutes} minute timer; Set a timer for {minutes} minutes called {label}; Set a {minutes} minute timer for {label}
timer | set_timer, start_timer, countdown | Set a timer.; Countdown | duration/time/length:duration | Set a timer for {duration}; Start a timer for {duration}.; Timer for {duration}; Count down {duration} with the timer
alarm | set_alarm, create_alarm, alarm | Set an alarm.; Wake me up at a time | time/at/when:time, label/note?:phrase | Set an alarm for {time}; Set an alarm at {time}.; Wake me up at {time}, set an alarm; Alarm at {time} with label {label}
reminder | set_reminder, create_reminder, remind_me, add_reminder | Create a reminder.; Remind the user of something | text/message/task/what:phrase, time/when?:time | Remind me to {text}; Remind me to {text} at {time}; Set a reminder: {text}; Set a reminder at {time}: {text}; Create a reminder to {text} at {time}.
email | send_email, email, send_mail | Send an email.; Sends a mail to someone | to/recipient/address:email, body/text/message/content:phrase, subject/title?:phrase | Send an email to {to} saying {body}; Email {to}: {body}; Send an email to {to} with subject {subject} and body {body}; Write an email to {to} saying {body}; Send {to} an email that says {body}; Mail {to}, subject {subject}, text {body}
message | send_message, message, send_sms, send_text, text_message | Send a message to someone.; Send a text message | to/recipient/contact/name:name, text/message/body/content:phrase | Send a message to {to} saying {text}; Text {to}: {text}; Tell {to} that {text}, send a message; Message {to}: {text}; Send {to} the message {text}
search | search, web_search, search_web, google | Search the web.; Find pages on the internet | query/q/text/term:phrase, limit/max_results?:small | Search for {query}; Search the web for {query}.; Look up {query} on the web; Find {query} online; google {query}; Search the web for {query} and show {limit} results
wiki | wikipedia, search_wikipedia, wiki_lookup | Look something up on Wikipedia.; Wikipedia article | title/topic/query/page:phrase | Look up {title} on Wikipedia; What does Wikipedia say about {title}?; Wikipedia article on {title}; Search wikipedia for {title}
translate | translate, translate_text, translator | Translate a text.; Translate text into a language | text/phrase:phrase, language/target/to/target_language:language | Translate {text} to {language}; Translate {text} into {language}.; How do you say {text} in {language}?; Say {text} in {language}, use the translator
currency | convert_currency, exchange, currency_converter | Convert money.; Convert an amount between currencies | amount/value:number, from/from_currency/source:currency, to/to_currency/target:currency | Convert {amount} {from} to {to}; How much is {amount} {from} in {to}?; {amount} {from} in {to}; Change {amount} {from} into {to}
units | convert_units, convert, unit_converter | Convert between units.; Convert a value to another unit | value/amount:number, from_unit/from/source:unit, to_unit/to/target:unit | Convert {value} {from_unit} to {to_unit}; How many {to_unit} are {value} {from_unit}?; {value} {from_unit} in {to_unit}?; Turn {value} {from_unit} into {to_unit}
stock | get_stock_price, stock_price, get_price, stock | Get the price of a stock.; Stock price by symbol | ticker/symbol/stock:ticker | What is the stock price of {ticker}?; Stock price of {ticker}; How much is {ticker} stock?; Get the price of {ticker} stock; What is {ticker} stock trading at?
news | get_news, news, latest_news, headlines | Get the news.; Latest news about a topic | topic/query/about/subject:phrase | What is the news about {topic}?; News about {topic}; Show me the latest news on {topic}; Any news on {topic}?; Read me the news about {topic}
event | create_event, add_event, schedule_meeting, create_meeting | Create a calendar event.; Schedule something | title/name/summary:phrase, date/day:date, time/start?:time | Create an event {title} on {date}; Schedule {title} on {date} at {time}; Add an event called {title} on {date}; Put {title} in my calendar on {date} at {time}; Schedule a meeting {title} on {date}
music | play_music, play_song, play, music_player | Play music.; Play a song | song/title/query/track:phrase, artist/by?:name | Play {song}; Play {song} by {artist}; Play the song {song}.; Put on {song} by {artist}; I want to hear {song}
light | set_light, turn_light, light, switch_light | Switch a light.; Turn a light on or off | room/location/name:word, state/mode:enum on off | Turn {state} the light in the {room}; Turn the {room} light {state}; Switch {state} the {room} light; Light {state} in the {room}, please
light | set_light, light_switch, toggle_light | Switch a light.; Light control | room/where:word, on/enabled:flag | Set the light in the {room} to {on}; Light in the {room}: {on}; Set the {room} light, on {on}
heating | set_temperature, thermostat, set_thermostat | Set the thermostat.; Set the room temperature | temperature/degrees/value/target:small, room?:word | Set the temperature to {temperature} degrees; Set the thermostat to {temperature}; Set the temperature in the {room} to {temperature}; Heat the {room} to {temperature} degrees
read | read_file, open_file, cat, get_file | Read a file.; Returns the text of a file | path/file/filename/file_path:path | Read the file {path}; Read {path}; Show me the content of {path}; Open the file {path}.; What is in the file {path}?; cat {path}
write | write_file, save_file, create_file | Write a file.; Save text to a file | path/file/filename/file_path:path, content/text/data:phrase | Write {content} to {path}; Save {content} in the file {path}; Create a file {path} with the text {content}; Write the file {path} with content {content}
list | list_files, ls, list_directory | List the files of a folder.; List a directory | path/folder/directory:path | List the files in {path}; List the files of {path}; Show the files in {path}; ls {path}; Which files are in {path}?
remove | delete_file, remove_file, rm | Delete a file.; Remove a file | path/file/filename:path | Delete the file {path}; Delete {path}.; Remove the file {path}; rm {path}
flight | search_flights, find_flights, book_flight, get_flights | Find flights.; Flights between two cities | origin/from/from_city/departure:city, destination/to/to_city/arrival:city, date/day?:date | Find flights from {origin} to {destination}; Flights from {origin} to {destination} on {date}; Find a flight from {origin} to {destination} on {date}.; I want to fly from {origin} to {destination}; Fly from {origin} to {destination} on {date}
hotel | find_hotel, book_hotel, search_hotels, hotels | Find a hotel.; Hotels in a city | city/location/place:city, nights?:small | Find a hotel in {city}; Book a hotel in {city} for {nights} nights; Hotels in {city}; I need a hotel in {city} for {nights} nights
restaurant | find_restaurant, search_restaurants, restaurants | Find a restaurant.; Restaurants in a place | city/location/near:city, cuisine/food/kind?:enum italian chinese french indian thai | Find a restaurant in {city}; Find a {cuisine} restaurant in {city}; Which {cuisine} restaurants are in {city}?; {cuisine} restaurant in {city}
route | get_directions, get_route, route, navigate | Find a route.; Directions from one place to another | start/from/origin:city, end/to/destination:city | How do I get from {start} to {end}?; Directions from {start} to {end}; Route from {start} to {end}; Navigate from {start} to {end}
distance | get_distance, distance, distance_between | Distance of two cities.; How far it is | a/from/city1/start:city, b/to/city2/end:city | How far is it from {a} to {b}?; What is the distance between {a} and {b}?; Distance from {a} to {b}
random | random_number, get_random_number, randint | A random number.; Random integer in a range | low/min/minimum/start:small, high/max/maximum/end:small | Give me a random number between {low} and {high}; Random number from {low} to {high}; Pick a random number between {low} and {high}.
dice | roll_dice, roll, dice | Roll dice.; Roll a die | sides?:small, count/n/times?:small | Roll a dice; Roll a dice with {sides} sides; Roll {count} dice; Roll {count} dice with {sides} sides
todo | add_todo, add_task, create_task, todo_add | Add a todo.; Add a task to the list | text/title/task/item:phrase, priority?:enum low medium high | Add {text} to my todo list; New task: {text}; Add the task {text} with {priority} priority; Add a todo {text}, priority {priority}
shopping | add_to_list, shopping_list_add, add_item | Add to the shopping list.; Put something on the shopping list | item/name/product:word, quantity/count/amount?:small | Put {item} on the shopping list; Add {item} to my shopping list; Add {quantity} {item} to the shopping list; Shopping list: {quantity} {item}
contact | get_contact, find_contact, lookup_phone, get_phone_number | Find a contact.; Phone number of a person | name/person/who:name | What is the phone number of {name}?; Find the contact {name}; Give me the phone number of {name}; Look up {name} in my contacts
user | get_user, find_user, user_info, lookup_user | Get a user by id.; User information | user_id/id/uid:small | Get user {user_id}; Who is user {user_id}?; Show the user with id {user_id}; Look up user {user_id}
order | get_order, order_status, track_order | Status of an order.; Track an order | order_id/id/order/number:code | Where is my order {order_id}?; Status of order {order_id}; Track order {order_id}.; What is the status of order {order_id}?
pizza | order_pizza, pizza, buy_pizza | Order a pizza.; Order pizza | size:enum small medium large, topping/kind/flavor:word, count/quantity?:small | Order a {size} pizza with {topping}; I want a {size} {topping} pizza; Order {count} {size} pizzas with {topping}
table | book_table, reserve_table, make_reservation | Book a table.; Reserve a table at a restaurant | restaurant/place/name:name, people/guests/persons:small, time/at:time | Book a table at {restaurant} for {people} people at {time}; Reserve a table for {people} at {restaurant} at {time}; Table for {people} at {restaurant}, {time}
define | define, dictionary, get_definition, define_word | Define a word.; Meaning of a word | word/term:word | Define {word}; What does {word} mean?; What is the definition of {word}?; Look up the word {word} in the dictionary; Meaning of {word}
capital | get_capital, capital, capital_of | Capital of a country.; The capital city | country/name/nation:name | What is the capital of {country}?; Capital of {country}?; Tell me the capital of {country}
population | get_population, population | Population of a place.; How many people live somewhere | place/country/city/location:city | What is the population of {place}?; How many people live in {place}? Get the population.; Population of {place}
python | run_python, python, execute_code, run_code | Run Python code.; Execute code | code/source/script:expression | Run the Python code {code}; Execute {code} in Python; Run {code}
count | count_letters, count_letter, letter_count | Count a letter in a word.; How often a letter is in a word | word/text:word, letter/char/character:letter | How many {letter} are in {word}?; Count the letter {letter} in {word}; How many times is {letter} in {word}?
note | save_note, add_note, create_note, take_note | Save a note.; Write down a note | text/content/note/body:phrase, title?:word | Take a note: {text}; Save the note {text}; Note that {text}; Create a note titled {title} with the text {text}; Write a note: {text}
volume | set_volume, volume, change_volume | Set the volume.; Change the sound volume | level/volume/percent/value:small | Set the volume to {level}; Volume {level}; Turn the volume to {level} percent; Change the volume to {level}
joke | tell_joke, get_joke, joke, random_joke | Tell a joke.; A random joke | topic/about/subject?:word | Tell me a joke; Tell me a joke about {topic}; A joke about {topic}, please; I want to hear a joke
crypto | get_crypto_price, crypto_price, coin_price | Price of a coin.; Crypto price | coin/symbol/name:ticker, currency?:currency | What is the price of {coin} crypto?; Crypto price of {coin} in {currency}; Price of the coin {coin} in {currency}
"""  # noqa: E501


class Recipe:
    """One line of the table."""

    def __init__(self, line: str) -> None:
        cells = [cell.strip() for cell in line.split("|")]
        self.key = cells[0]
        self.names = cells[1].split(", ")
        self.descriptions = [text.strip() for text in cells[2].split(";")]
        self.params = [_slot(text) for text in cells[3].split(",") if text.strip()]
        self.requests = [text.strip() for text in cells[4].split(";")]


def _slot(text: str) -> tuple[list[str], bool, str, list[str]]:
    names, kind = text.strip().split(":")
    kind, *choices = kind.split(" ")
    return names.rstrip("?").split("/"), not names.endswith("?"), kind, choices


RECIPES = [Recipe(line) for line in _LINES.strip().splitlines()]
_TYPES = {"small": "integer", "int": "integer", "number": "number", "flag": "boolean"}


def tutorial_tool(rng: random.Random) -> Tool:
    """One of the table's tools, under one of its names, with some of its optional parameters."""
    recipe = rng.choice(RECIPES)
    renamed: dict[str, str] = {}
    params: list[Param] = []
    for aliases, required, kind, choices in recipe.params:
        name = rng.choice([alias for alias in aliases if alias not in renamed.values()])
        if not required and rng.random() < 0.4:
            continue
        renamed[aliases[0]] = name
        schema: dict[str, Any] = {"type": _TYPES.get(kind, "string")}
        if choices:
            schema["enum"] = choices
        params.append(Param(name, schema, kind, required))
    usable = [text for text in recipe.requests if set(re.findall(r"{(\w+)}", text)) <= renamed.keys()]
    requests = tuple(re.sub(r"{(\w+)}", lambda found: "{" + renamed[found[1]] + "}", text) for text in usable)
    topic = "calculation" if recipe.key == "calculator" else recipe.key
    description = rng.choice(recipe.descriptions) if rng.random() < 0.9 else ""
    return Tool(rng.choice(recipe.names), topic, "", description, tuple(params), recipe.key, requests)


def tutorial_request(rng: random.Random, tool: Tool, held_out: bool) -> tuple[str, dict[str, Any]]:
    """One of the tool's own requests with values put in."""
    template = rng.choice(tool.requests)
    given = set(re.findall(r"{(\w+)}", template))
    arguments: dict[str, Any] = {}
    for param in tool.params:
        if param.name in given:
            spoken = draw(rng, param.kind, param.schema, held_out)
            template = template.replace("{" + param.name + "}", spoken.text)
            arguments[param.name] = spoken.value
    return template, arguments
