"""Questions with known answers for `benchmarks/decisions.py`: seven kinds, three of them choices, three of
them statements that are true or not, and one of ordered levels. All texts were written for this file."""

from typing import NamedTuple


class Decision(NamedTuple):
    """One question about one text. `answer` is the option's place, counted from 0; of a statement 1 if it is true."""

    kind: str
    text: str
    question: str
    options: tuple[str, ...]
    descriptions: tuple[str, ...]
    answer: int


TOPICS = ("sport", "science", "politics", "business", "travel")
_TOPIC: dict[str, str] = {
    "sport": """The goalkeeper saved two penalties and the cup stays in town.
She ran the marathon in two hours and nineteen minutes, a record for the course.
After a long injury the striker scored twice in the second half.
The relay team was disqualified because the last runner dropped the baton.
Rain stopped the tennis final after the first set.
The coach was dismissed when the club lost its ninth match.
Our swimmers won four medals at the championship.
The referee showed a red card in the tenth minute.
He lifted two hundred kilos and took the gold.
The cyclists climbed three passes in today's stage.""",
    "science": """The telescope found water vapour around a distant planet.
Researchers grew a tiny piece of muscle in a dish.
A new enzyme breaks plastic down within hours.
Biologists counted a hundred new species of moss.
The physicists measured the mass of the particle more exactly than before.
Bones from the cave are older than any found so far, the analysis shows.
Bees can learn to tell numbers apart, an experiment suggests.
The probe took samples of dust from an asteroid.
Geologists explain why the volcano stayed quiet for so long.
A chemist describes how the molecule folds in warm water.""",
    "politics": """Parliament passed the budget after a debate that lasted all night.
The minister resigned over the letters.
Voters go to the polls on Sunday to elect a new mayor.
The two presidents signed a treaty about the border.
The opposition demands an inquiry into the contract.
A coalition of three parties will form the government.
The senate rejected the reform of the pension law.
The ambassador was called back for talks.
The party chose a former teacher as its candidate.
The council voted against the new tax.""",
    "business": """The airline's profit doubled in the last quarter.
Shares of the carmaker fell by seven percent.
The bakery chain will open forty shops next year.
The two banks are talking about a merger.
The company lays off a tenth of its staff to save costs.
Retailers expect strong sales before the holidays.
The start-up raised nine million from investors.
The price of copper reached its highest level in a decade.
The central bank left interest rates unchanged.
The furniture maker filed for bankruptcy on Friday.""",
    "travel": """From the station it is a ten minute walk to the old harbour and its small hotels.
The night train to the coast has sleeping cars with a view.
Bring good boots: the path to the hut is steep.
The island has three quiet beaches and one guest house.
The best time to visit the valley is late spring, when the hotels are cheap.
Our guide took us through the bazaar and up to the fortress.
Tourists need no visa for stays of less than thirty days.
The ferry leaves twice a day, and rooms should be booked early.
A day in the old town: what to see and where to eat.
We hiked along the lake and slept in a tent.""",
}

_POSITIVE = """I loved every minute of it, the actors were wonderful.
Great phone, the battery lasts for two days.
The staff was friendly and the room spotless.
Best soup I have had in years.
It works perfectly and was easy to set up.
A moving, beautiful book that I could not put down.
My children adore this game.
Fast delivery, and the quality is excellent.
The concert was a joy from start to end.
I am very happy with these shoes, so comfortable.
What a lovely little cafe, we will come back.
The teacher explains everything clearly, I learned a lot.
The new version is a huge improvement.
Delicious bread and warm service.
This vacuum cleaner is quiet and strong; highly recommended.
An amazing trip, thank you to our guide.
The sound of these headphones is superb.
The doctor was kind and took her time.
A brilliant film with a clever ending.
Finally a tent that stays dry. Fantastic.
The garden looks gorgeous thanks to them.
I laughed so much, a delightful evening.
Good value, I would buy it again.
The repair was quick, cheap and friendly.
The view from the balcony was magnificent."""
_NEGATIVE = """I want my money back, it broke after a day.
The food was cold and the waiter rude.
A boring film, I fell asleep.
The room smelled and the bed was dirty.
Terrible sound, do not buy these headphones.
The app crashes all the time.
I waited two hours and nobody came.
The worst book I have read this year.
Poor quality, the seams came apart.
The parcel arrived late and damaged.
Awful service, I will never return.
The battery dies after an hour, useless.
My soup had a hair in it, disgusting.
The instructions are wrong and nothing fits.
What a disappointment, the tickets were a waste of money.
The guide was unfriendly and the bus late.
This vacuum cleaner is loud and weak.
The doctor did not listen to me at all.
The update made everything slower and uglier.
The shoes hurt and lost their colour.
A dull evening with bad jokes.
The tent leaked in the first rain.
They charged me twice and ignored my letters.
The paint peeled off within a week.
Horrible noise all night, we could not sleep."""

_SPAM = """CONGRATULATIONS!!! You have won 1,000,000 dollars, click here to claim your prize now!
Cheap pills without prescription, order today and save 80%.
Dear friend, I am a prince and need your bank account to move my fortune.
Hot singles in your area want to meet you tonight.
Make 5000 a week from home with this one secret trick!
Your account is locked, send us your password at once to unlock it.
Free free free! Get a new phone for nothing, offer ends in 10 minutes!
Double your bitcoin in one hour, guaranteed.
You are our lucky visitor number 100,000, claim your reward!
Lose 20 kilos in one week with this miracle tea, buy now!
Earn a university diploma without any exam, call this number.
Final notice: pay the customs fee of 2 euros with your credit card here.
Investors get rich overnight with our robot, join now, zero risk!
Limited offer!!! Luxury watches, 95% off, copies like real!
Your computer has 37 viruses! Download our cleaner immediately!
Win a trip to paradise, just confirm your card number.
Dear beneficiary, you inherit 12 million, reply with your passport.
Casino bonus 300 free spins, no deposit, click the link!
Act now, this stock will explode tomorrow, insiders only!
Work 10 minutes a day and buy a car next month, ask me how!"""
_MAIL = """Hi Ana, are we still meeting for lunch on Thursday?
Please find attached the minutes of yesterday's meeting.
The plumber comes on Monday between nine and ten.
Mum, I arrived safely, the train was on time.
Could you review my draft by Friday? Thanks, Jonas
Your library books are due on the 14th.
The children's choir rehearses in room 4 this week.
Thank you for the flowers, they are on my desk.
I moved our appointment to three o'clock, I hope that suits you.
The heating in the office will be off on Saturday for maintenance.
Here are the photos from the hike, the one by the lake is my favourite.
The report is almost done, only the table on page 3 is missing.
Your order of two shelves was sent this morning.
Do you have the recipe for the lentil soup?
Our team won the quiz evening, see you next month.
The dentist reminds you of your appointment on 3 May at 10:30.
I left the keys with the neighbour on the second floor.
The school closes at noon on Friday.
Can we talk about the budget for the printer tomorrow?
Happy birthday, dear Paul, and see you on Sunday!"""

_PASSAGES: tuple[tuple[str, str, str], ...] = (
    (
        "The museum is open from Tuesday to Sunday. On Mondays it is closed.",
        "The museum is closed on Mondays.",
        "The museum is open on Mondays.",
    ),
    (
        "Mara has two brothers. Both live in Oslo, while she lives in Bergen.",
        "Mara's brothers live in Oslo.",
        "Mara lives in Oslo.",
    ),
    (
        "The bridge was built in 1932 and repaired in 1987.",
        "The bridge was repaired in 1987.",
        "The bridge was built in 1987.",
    ),
    (
        "Only members may use the sauna. Guests may use the pool.",
        "Guests may use the pool.",
        "Guests may use the sauna.",
    ),
    ("The soup contains milk and celery, but no nuts.", "The soup contains milk.", "The soup contains nuts."),
    (
        "Tom wanted to fly to Rome, but he took the train because of the strike.",
        "Tom went by train.",
        "Tom flew to Rome.",
    ),
    (
        "The blue box weighs 5 kilos, the red one 9.",
        "The red box is heavier than the blue one.",
        "The blue box is heavier than the red one.",
    ),
    (
        "Every ticket costs 12 euros; children under six pay nothing.",
        "A child of four pays nothing.",
        "A child of four pays 12 euros.",
    ),
    ("The meeting was moved from Tuesday to Thursday.", "The meeting is on Thursday.", "The meeting is on Tuesday."),
    ("Lena speaks Polish and French. She is learning Greek.", "Lena speaks French.", "Lena speaks Chinese."),
    ("The shop sells bread, cheese and wine. It has no meat.", "The shop sells cheese.", "The shop sells meat."),
    (
        "The lake is 40 metres deep and freezes in most winters.",
        "The lake freezes in most winters.",
        "The lake never freezes.",
    ),
    (
        "After the storm the road to the village was closed for two days.",
        "The road was closed.",
        "The road stayed open.",
    ),
    (
        "The cat sleeps on the sofa, the dog under the table.",
        "The dog is under the table.",
        "The cat is under the table.",
    ),
    ("In the final, Brazil beat Sweden by five goals to two.", "Brazil won the final.", "Sweden won the final."),
    (
        "The printer on the first floor is broken; the one on the second floor works.",
        "The printer on the second floor works.",
        "The printer on the first floor works.",
    ),
    ("Nobody was hurt when the tree fell on the garage.", "Nobody was hurt.", "Several people were hurt."),
    (
        "The contract ends on 31 March unless it is renewed.",
        "The contract can be renewed.",
        "The contract ends in July.",
    ),
    ("Ivo is taller than Ben, and Ben is taller than Carl.", "Ivo is taller than Ben.", "Carl is taller than Ben."),
    (
        "The test found lead in the water, so the school gives out bottles.",
        "There was lead in the water.",
        "The water was clean.",
    ),
    (
        "The film is in Danish with English subtitles.",
        "The film has English subtitles.",
        "The film has French subtitles.",
    ),
    ("Half of the apples were eaten, the others became cake.", "Some apples were eaten.", "No apple was eaten."),
    ("Payment is possible in cash only. Cards are not accepted.", "One can pay in cash.", "One can pay by card."),
    ("The old mill has been a restaurant since 2004.", "The mill is a restaurant now.", "The mill is a school now."),
    (
        "The train from Graz arrives at 9:40 and leaves for Linz at 9:52.",
        "The train goes to Linz.",
        "The train leaves at 9:40.",
    ),
)

QUEUES = ("billing", "access", "delivery", "hardware", "praise")
QUEUE_DESCRIPTIONS = (
    "money: invoices, charges, refunds",
    "logging in: passwords, accounts, permissions",
    "parcels: late, lost, wrong address",
    "a device that is broken or does not work",
    "thanks, nothing has to be done",
)
_QUEUE: dict[str, str] = {
    "billing": """You charged my card twice in March.
Please send the invoice to our new address.
When do I get my refund?
The amount on the bill is wrong.
I cancelled my plan but was still charged.
Why is the price higher than last month?
We need the receipt for our taxes.
Can I pay in three instalments?""",
    "access": """I forgot my password and the reset link does not come.
My account is locked after three tries.
I cannot log in since this morning.
Please give my colleague permission to see the folder.
The code for signing in never arrives on my phone.
How do I change the name of my account?
It says that my user does not exist.
I need access to the shared drive.""",
    "delivery": """My parcel has not arrived yet.
The tracking says delivered, but nothing is here.
You sent it to my old address.
The courier left the box in the rain.
When will my order be shipped?
I got a parcel that was meant for someone else.
The package has been in customs for two weeks.
Can the delivery come after six o'clock?""",
    "hardware": """The screen stays black when I press the button.
The printer makes a grinding noise and stops.
One of the keys on the keyboard does not work.
The battery gets very hot while charging.
The router's light blinks red and there is no signal.
The left speaker is silent.
My headset's cable is torn.
The laptop's fan is broken and it overheats.""",
    "praise": """Thank you so much, everything works again!
Just wanted to say that your team is great.
What excellent support, I am very happy.
No problem left, thanks for the quick help.
Best service I ever had, keep it up!
You made my day, thank you.
All fine now, many thanks to Jana.
I really like the new design, well done.""",
}

LEVELS = ("low", "medium", "high", "critical")
LEVEL_DESCRIPTIONS = (
    "a wish or a blemish, nobody is hindered",
    "one person is hindered, there is a way around",
    "many are hindered, or one cannot work at all",
    "everything is down, data is lost or people are in danger",
)
_SEVERITY: dict[str, str] = {
    "low": """The logo on the start page is a little blurred.
It would be nice to have a dark theme.
There is a typing mistake in the footer.
Could the font be somewhat larger?
The icon for export is hard to recognise.
A wish: sort the list by colour.
The welcome mail has two spaces in the title.
The button could be a friendlier green.""",
    "medium": """The export fails in one browser, with another it works.
My report takes a minute to load, but then it is there.
The search does not find words with accents; I type them without.
I cannot print from the app, so I print from the browser.
The calendar shows the wrong week for me; reloading helps.
For one colleague the sound is off until she restarts.
The filter forgets my choice, I set it again each morning.
The scanner jams sometimes; a second try works.""",
    "high": """Nobody in our department can open the order system.
I cannot start my computer and cannot work at all.
The whole sales team has had no mail since nine.
None of our shops can take card payments.
All users of the new version are logged out every minute.
The phone system of the office is dead, customers cannot reach us.
Forty people wait since the booking page shows an error.
The warehouse cannot print any labels, trucks are waiting.""",
    "critical": """The database was deleted and there is no backup.
There is smoke coming out of the server room!
All systems are down in every country.
Hackers have encrypted our files and demand money.
Patients' data is visible to everybody on the internet.
The gas alarm in the lab is ringing, people are being evacuated.
We are losing customers' orders every second, they are gone for good.
The control of the crane failed and it almost hit somebody.""",
}

LANGUAGES = ("English", "German", "French", "Spanish", "Italian")
_LANGUAGE: dict[str, str] = {
    "English": "The window is open.\nWe bought apples and bread.\nWhere is the station?\nShe reads in the garden.\n"
    "It will rain tomorrow.\nMy brother plays the piano.\nThe soup is hot.\nI have lost my keys.",
    "German": "Das Fenster ist offen.\nWir haben Brot gekauft.\nWo ist der Bahnhof?\nSie liest im Garten.\n"
    "Morgen wird es regnen.\nMein Bruder spielt Klavier.\nDie Suppe ist warm.\nIch suche meine Tasche.",
    "French": "La porte est ouverte.\nNous avons achete du pain.\nOu est la gare?\nElle lit dans le jardin.\n"
    "Il va pleuvoir demain.\nMon frere joue du piano.\nLa soupe est chaude.\nJe cherche mes clefs.",
    "Spanish": "La ventana esta abierta.\nHemos comprado pan.\nDonde esta la estacion?\nElla lee en el jardin.\n"
    "Manana va a llover.\nMi hermano toca el piano.\nLa sopa esta caliente.\nHe perdido mis llaves.",
    "Italian": "La finestra e aperta.\nAbbiamo comprato il pane.\nDov'e la stazione?\nLei legge in giardino.\n"
    "Domani piovera.\nMio fratello suona il pianoforte.\nLa zuppa e calda.\nHo perso le chiavi.",
}

STATEMENT = ("no", "yes")
"""The options of a statement, of which 1 means that it is true."""


def _choices(
    kind: str, question: str, options: tuple[str, ...], descriptions: tuple[str, ...], texts: dict[str, str]
) -> list[Decision]:
    return [
        Decision(kind, text, question, options, descriptions, options.index(name))
        for name, lines in texts.items()
        for text in lines.splitlines()
    ]


def _statements(kind: str, statement: str, true: str, false: str) -> list[Decision]:
    return [
        Decision(kind, text, statement, STATEMENT, (), int(lines is true))
        for lines in (true, false)
        for text in lines.splitlines()
    ]


TASKS: tuple[Decision, ...] = (
    *_choices("topic", "What is this text about?", TOPICS, (), _TOPIC),
    *_choices("queue", "Which queue should this mail go to?", QUEUES, QUEUE_DESCRIPTIONS, _QUEUE),
    *_choices("language", "In which language is this text written?", LANGUAGES, (), _LANGUAGE),
    *_choices("severity", "How severe is this problem?", LEVELS, LEVEL_DESCRIPTIONS, _SEVERITY),
    *_statements("sentiment", "The writer is satisfied.", _POSITIVE, _NEGATIVE),
    *_statements("spam", "This message is spam.", _SPAM, _MAIL),
    *(
        Decision("passage", passage, statement, STATEMENT, (), int(statement is true))
        for passage, true, false in _PASSAGES
        for statement in (true, false)
    ),
)
