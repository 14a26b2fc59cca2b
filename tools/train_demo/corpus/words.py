# ruff: noqa: E501
"""Word lists of the generated text."""

from __future__ import annotations


def _list(text: str) -> tuple[str, ...]:
    return tuple(word.strip().replace("_", " ") for word in text.split())


GIRLS = _list("""Mia Lily Anna Zoe Clara Emma Nora Ruby Ella Grace Ivy Rosa Tara Lucy Hana Maya Olga Petra Wanda Sofia
Elsa Freya Greta Heidi Iris Julia Kira Lena Mona Nina Paula Sara Tess Vera Yara Amira Bella Daisy Fiona Molly""")
BOYS = _list("""Tom Ben Max Leo Sam Jack Finn Oscar Hugo Omar Paul Noah Liam Theo Adam Felix Ivan Karl Luke Milo Nico
Otto Peter Ravi Simon Tim Victor Will Yusuf Aaron Bruno Carlos David Emil Frank George Henry Jonas Kevin Marco""")
ANIMALS = _list("""rabbit fox bear mouse squirrel hedgehog owl duck frog turtle badger otter beaver cat dog pony lamb goat
goose swan crow robin sparrow mole deer wolf lizard donkey hen kitten puppy pig calf heron bat raccoon panda monkey
parrot penguin seal""")
PLACES = _list("""forest garden meadow village park beach harbor market library school kitchen barn mill castle cave valley
bridge river lake hill tower bakery workshop attic cellar orchard playground station museum farm field island pond
stable yard chapel greenhouse lighthouse windmill canyon""")
TOWNS = _list("""Oakfield Riverton Stonebrook Maplewood Greenhill Westport Northgate Silverlake Ashford Brookside Kingsbridge
Fairview Redcliff Snowdale Goldcrest Millbrook Sunbury Foxhollow Harborview Elmstead""")
OBJECTS = _list("""ball kite lamp key book drum bell box coin hat scarf basket bucket map mirror ring rope spoon cup clock
candle pencil button feather shell stone bottle blanket ladder hammer wheel flute whistle compass lantern puzzle kettle
teapot ribbon marble brush chair letter camera flag glove shovel umbrella boot necklace doll train boat robot""")
COLORS = _list("red blue green yellow orange purple pink white black brown gray golden silver")
SIZES = _list("small big little tiny large huge tall short round thin thick wide")
QUALITIES = _list("""kind brave clever curious quiet gentle cheerful honest patient shy proud lazy busy careful playful stubborn
friendly polite funny hopeful lonely wise young old""")
LOOKS = _list("""old new shiny broken heavy light soft hard wooden dusty pretty strange magic clean dirty warm cold smooth
rusty bright simple rare""")
FOODS = _list("""apples pears plums cherries bananas cake cookies bread soup cheese honey carrots potatoes onions tomatoes
pancakes salad eggs rice noodles grapes peaches melons berries nuts pumpkins muffins waffles beans corn""")
FRUITS = _list(
    "apple pear plum cherry banana carrot potato onion tomato egg peach melon berry nut pumpkin honey cheese rice"
)
SNACKS = _list("apple pear plum banana cookie carrot egg pancake sandwich peach muffin waffle bun roll")
DISHES = _list("pie cake soup stew tart pudding")
BEDS = _list("blanket basket bed box nest")
DRINKS = _list("water milk tea juice lemonade cocoa")
GOOD = _list("happy glad proud excited cheerful delighted calm thankful relieved joyful")
BAD = _list("sad worried angry scared tired upset lonely nervous ashamed afraid")
WEATHER = _list("sunny rainy windy cloudy snowy foggy stormy warm cold icy")
SEASONS = _list("spring summer autumn winter")
DAYS = _list("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _list("January February March April May June July August September October November December")
ON_PLACES = frozenset(_list("hill bridge island field farm playground"))
AT_PLACES = frozenset(
    _list("school museum station beach harbor lake river mill market lighthouse windmill castle tower pond")
)
TIMES = _list("morning afternoon evening night")
JOBS = _list("""baker farmer teacher doctor painter sailor carpenter tailor gardener miller fisher singer writer cook driver
nurse pilot guard librarian blacksmith""")
FAMILY = _list("mother father sister brother grandmother grandfather aunt uncle cousin")
PLANTS = _list("oak rose tulip fern pine maple daisy willow lily ivy moss sunflower")
SUBJECTS = _list("math music art history science reading sport drawing")
NUMBERS = _list("zero one two three four five six seven eight nine ten eleven twelve")
PAST_MOVES = _list("walked ran hurried climbed wandered marched skipped rushed crept strolled")
SAID = _list("said asked whispered shouted answered called cried laughed")
SYLLABLES = _list("""ba be bi bo da de di do fa fe fi fo ga go ka ke ki ko la le li lo ma me mi mo na ne ni no pa pe pi po ra re
ri ro sa se si so ta te ti to va ve vi vo za ze zi zo lin mar tan ver dor sil ken bor ran fel""")
CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo", "Norway": "Oslo",
    "Greece": "Athens", "Peru": "Lima", "Cuba": "Havana", "Kenya": "Nairobi", "Poland": "Warsaw", "Austria": "Vienna",
    "Ireland": "Dublin", "Portugal": "Lisbon", "Sweden": "Stockholm", "Finland": "Helsinki", "Germany": "Berlin",
    "Hungary": "Budapest", "Canada": "Ottawa", "Chile": "Santiago",
}  # fmt: skip
SOUNDS = {
    "dog": "barks", "cat": "meows", "cow": "moos", "duck": "quacks", "frog": "croaks", "lion": "roars", "owl": "hoots",
    "pig": "grunts", "sheep": "bleats", "horse": "neighs", "bee": "buzzes", "snake": "hisses", "wolf": "howls",
    "mouse": "squeaks", "bird": "sings",
}  # fmt: skip
HOMES = {
    "bee": "hive", "bird": "nest", "bear": "cave", "fox": "den", "spider": "web", "horse": "stable", "dog": "kennel",
    "rabbit": "burrow", "fish": "sea", "frog": "pond", "owl": "hollow tree", "cow": "barn",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": "small", "fast": "slow", "up": "down", "day": "night", "happy": "sad", "light": "dark",
    "old": "young", "hard": "soft", "full": "empty", "loud": "quiet", "early": "late", "near": "far", "open": "closed",
    "wet": "dry", "rich": "poor", "strong": "weak", "high": "low",
}  # fmt: skip
MATERIALS = {
    "bread": "flour", "paper": "wood", "glass": "sand", "cheese": "milk", "wine": "grapes", "butter": "cream",
    "a candle": "wax", "a coin": "metal", "a scarf": "wool", "a brick": "clay", "a tire": "rubber", "jam": "fruit",
}  # fmt: skip


def at(place: str) -> str:
    """The place with its preposition."""
    return f"{'on' if place in ON_PLACES else 'at' if place in AT_PLACES else 'in'} the {place}"


LISTS: dict[str, tuple[str, ...]] = {
    "girl": GIRLS, "boy": BOYS, "name": GIRLS + BOYS, "animal": ANIMALS, "place": PLACES, "town": TOWNS,
    "object": OBJECTS, "color": COLORS, "size": SIZES, "quality": QUALITIES, "look": LOOKS, "food": FOODS,
    "drink": DRINKS, "fruit": FRUITS, "snack": SNACKS, "dish": DISHES, "bed": BEDS, "at": tuple(map(at, PLACES)), "good": GOOD, "bad": BAD, "weather": WEATHER, "season": SEASONS, "day": DAYS, "month": MONTHS,
    "time": TIMES, "job": JOBS, "family": FAMILY, "plant": PLANTS, "subject": SUBJECTS, "number": NUMBERS[2:],
    "moved": PAST_MOVES, "said": SAID,
}  # fmt: skip
