# ruff: noqa: E501  (a wording is easier to judge on one line)
"""Small stories with a plot, and questions about them."""

from __future__ import annotations

from .words import at
from .writer import Writer

PRONOUNS = {
    "girl": {"he": "she", "him": "her", "his": "her", "He": "She", "His": "Her", "kind": "girl"},
    "boy": {"he": "he", "him": "him", "his": "his", "He": "He", "His": "His", "kind": "boy"},
}


def cast(w: Writer) -> None:
    """Chooses characters, places and things, so that a whole story agrees with itself."""
    gender = w.rng.choice(("girl", "boy"))
    w.state.update(PRONOUNS[gender])
    w.state["hero"] = w.pick(gender)
    if w.chance(0.25):
        w.state["kind"] = w.pick("animal")
    for slot in (
        "place",
        "object",
        "color",
        "quality",
        "town",
        "food",
        "fruit",
        "dish",
        "family",
        "job",
        "weather",
        "look",
    ):
        w.state[slot] = w.pick(slot)
    w.state["glad"], w.state["sorry"] = w.pick("good"), w.pick("bad")
    w.state["other"] = w.pick("name")
    while w.state["other"] == w.state["hero"]:
        w.state["other"] = w.pick("name")
    w.state["animal"] = w.pick("animal")
    w.state["second"] = w.pick("place")
    while w.state["second"] == w.state["place"]:
        w.state["second"] = w.pick("place")
    w.state["at"], w.state["at2"] = at(w.state["place"]), at(w.state["second"])
    w.state["count"] = w.pick("number")


OPENINGS = (
    "Once upon a time, there {was|lived} a $quality $kind {named|called} $hero{| in $town}.",
    "Once upon a time, in {the town of |}$town, there lived a $quality {little |young |}$kind {named|called} $hero.",
    "One {sunny|rainy|cold|quiet|bright|windy} #time, a $quality $kind {named|called} $hero {went to the $place|was $at|came to the $place}.",
    "There once was a {little|young} $kind {named|called} $hero who was very $quality{| and #quality}.",
    "$hero was a $quality {little |young |}$kind who lived {near|by|next to|not far from} the $place{| in $town}.",
    "Long ago, a $quality $kind called $hero lived with $his $family {near the $place|$at|by the $place}.",
    "{On a|It was a} $weather #day in #month{, and|. That day,} $hero {was $at|went to the $place} with $his $family.",
)
LIKES = (
    "$He {loved|liked} to {play|read|sing|draw|dance|swim|cook|paint|run|climb} $at {every|each} {day|#time|#day|#season}.",
    "$He {had|owned} a $look $color $object{| from $his $family}, and $he {took|carried} it everywhere.",
    "Every #time, $hero {ate|had} {a #snack|some #food} and {drank|had} a cup of #drink{ with $his $family| before school|}.",
    "$His best friend was $other, and {together|every #day} they {played|walked|talked|sat} $at.",
    "$His $family was a {good |#quality |}$job and {worked|had a shop} near the $second.",
    "$He was {often|always|sometimes} {#good|#bad|#quality} when the weather was $weather{| in $town}.",
)
LOST = (
    (
        "One #time, $hero could not find $his $color $object{| anywhere $at}.",
        "But on #day, the $color $object was gone, and $hero did not know where it was.",
        "Then $hero {saw|noticed} that $his {$look |}$color $object was {lost|missing|not there}.",
    ),
    (
        "$He was very $sorry and {looked|searched} {under the #object|behind the #object|in the #object|near the #plant}.",
        "$hero felt $sorry and {began|started} to look {$at|around the $place}{ for it|}.",
        '"Where is my $object?" $he {cried|asked}{ with a #bad voice| $at|}, and $he felt $sorry.',
    ),
    (
        '$other came and said{ kindly|}, "I will help you {find|look for} {the|your} $object."',
        '"{Do not be $sorry|Do not worry}," said $other{ with a smile|}. "We will find your $object together."',
        "$hero asked $other for help, and they {walked|ran|hurried|went} to the $second to {look|search}.",
    ),
    (
        "They looked {in|near|behind} the #object and {under|by|on} the #object, but {it was not there|they found nothing}.",
        "First they {asked|spoke to} the #job, {who|but the #job} had {not seen|seen no} $color $object.",
        "They {walked|searched|looked} for a long time{ in the {wind|rain|sun|cold}|}, from the $place to the $second.",
    ),
    (
        "{At last|Finally|In the end}, $other found the $color $object {$at2|near the $second|behind the $second}{ under a #object|}.",
        "{At last|Finally}, they saw the $color $object {$at2, next to a #look #object|lying on the ground $at2}.",
        "Then a #quality $animal {came with|brought|found} the $color $object {from the $second|$at2}.",
    ),
    (
        '"Thank you, $other!" said $hero{ and smiled|}. $He was {so|very} $glad.',
        "$hero was $glad and {thanked|hugged} $other {again and again|with a big smile|for the help}.",
        "$hero felt $glad, and {they|$he and $other} {went home|walked home|had {some |}$food and #drink} together.",
    ),
)
ANIMAL = (
    (
        "One #time, $hero {saw|found|heard} a #size $animal {$at2|near the $second|by the $second}.",
        "On the way to the $second, $hero {met|saw|found} a #bad little $animal{ under a #plant|}.",
    ),
    (
        "The $animal was {hurt|hungry|cold|lost|tired} and looked {very |so |}$sorry.",
        "The $animal could not {walk|eat|sleep|find its home}, so it {was|felt} {very |}$sorry.",
        '"Please help me," said the $animal{ in a #bad voice|}. "I am {so |very |}{hungry|cold|tired} and $sorry."',
    ),
    (
        "$hero was $quality and gave the $animal {some|a little} $food{ and #drink|}.",
        "So $hero {took|carried} the $animal home and gave it {some |a bit of |}$food{ and #drink|}.",
        "$hero {put|laid} the $animal in a {warm|soft} #bed and gave it {some |}$food.",
    ),
    (
        '$His $family {said|smiled and said}, "You {are|were} very $quality, $hero."',
        "$other, the $job, came to help and {said|told $hero} that the $animal would be {well|fine} by #day.",
        "For $count days, $hero {looked after|cared for} the $animal {every|each} #time{ $at|}.",
    ),
    (
        "{Soon|After $count days|By #day}, the $animal was {well|strong|#good} again and {played|ran|danced} $at.",
        "When #season came, the $animal {was strong and went back to|ran happily through} the $second.",
    ),
    (
        "$hero and the $animal {became|were} {good|best} friends{ and never forgot that day $at2|}, and $hero was $glad.",
        "From that day on, the $animal {came|returned} to the $place every #time{ to see $hero|}, and $hero was $glad.",
    ),
)
MAKING = (
    (
        "One #day, $hero wanted to make a {#size |}$fruit $dish for $his $family.",
        "It was {almost|nearly} the birthday of $his $family, so $hero {wanted|decided} to make {a |the best |a #size }$fruit $dish.",
    ),
    (
        "$He needed $count {$fruit pieces|cups of #drink|cups of flour}, but {there was only one $at|the #object was empty}.",
        "$He took a {big |#look |}#object and {put|placed} $count {fresh |ripe |}{#fruit|$fruit} pieces in it.",
    ),
    (
        "So $he {went|walked|ran} to the $second {and|where $he} asked $other{, the $job,|} for {some |more |}$food.",
        '"$other, {can|could} you {help me|give me some $food}?" asked $hero{ $at2|}.',
    ),
    (
        '"{Yes|Of course}, {I will|we can do it together}," said $other{ the $job|}, and they {went to|worked in} the $second.',
        "$other was {#quality|$glad} and gave $hero {all the|a #bed full of} $food{ for one #color #object|}.",
    ),
    (
        "They {cut|washed|mixed} the $food{ with #drink and #food|}, and the {whole |}$place smelled {good|sweet|wonderful}.",
        "After $count {hours|minutes}, the $dish was {ready|done|hot}, and it looked {nice|very good|wonderful}.",
    ),
    (
        '$His $family {tasted it and|smiled and} said, "This is the best $fruit $dish I {have ever|ever} had!" $hero was $glad.',
        "Everyone in {the $place|$town} {ate|had} a piece{ with a cup of #drink|}, and $hero was $glad.",
    ),
)
QUARREL = (
    (
        "One #time, $hero and $other both wanted {to play with |}the $color $object.",
        "On #day, $other took the $color $object from $hero {without asking|$at}.",
    ),
    (
        '"{It is mine|Give it back|That is my $object}!" {cried|shouted} $hero{ $at|}, and $he felt $sorry.',
        "$hero {shouted|pulled}, $other {pulled|shouted}, and {soon|then} the $color $object {fell|broke} {on the ground|in two}.",
    ),
    (
        "They {both |}{ran|walked|went} away {without a word|in tears}, $hero to the $place and $other to the $second.",
        "$hero {sat|stayed} alone {$at2|near the $second} and felt $sorry {all|the whole} #time.",
    ),
    (
        '$His $family {said|told $him}, "A friend is {worth more|more important} than a $object, $hero."',
        'A #quality old $job {saw $him and|$at2} said, "{Say sorry|Be $quality}, and {things|it} will be well."',
    ),
    (
        'So $hero {went|walked} to $other and said, "I am sorry{ about the $object|}. {Let us share it|You can have it today}."',
        '"I am sorry {too|about the $color $object}, $hero," said $other{ $at2|}. "{Let us share|We can share it}."',
    ),
    (
        "{After that|From that day on}, they {shared|played with} the $color $object {every|each} #day{ $at|}, and $hero was $glad.",
        "They {mended|fixed|cleaned} the $color $object together {with|and had} some $food, and $hero was $glad.",
    ),
)
BRAVE = (
    (
        "One #weather #time, $hero {heard|saw} {a strange sound|something #color} {$at2|near the $second|from the $second}.",
        "That {night|evening}, a {storm|strong wind} came, and $other was {still |}{alone |lost |}$at2.",
    ),
    (
        "$He was $sorry, because the $second was {dark|far away|cold|very old}{ and #weather|}.",
        '"{Do not go|It is too dark}, $hero," said $his $family. "The $second is not safe {at night|in #season}."',
    ),
    (
        "But $hero {took|picked up|found} {a|the} $look $color $object and {went|#moved} to the $second{ alone|}.",
        "But $hero was $quality, so $he took {a|the} $color $object and {#moved|went} {into|toward} the $second.",
    ),
    (
        "{There|Inside}, $he found {only |}a {#size |small }$animal {with|behind} a #look #object.",
        "In the {dark|middle} of the $second, $he {saw|found} $other, {who was|sitting} {cold|tired|hungry} and $sorry.",
    ),
    (
        '"You {came|found me}!" {cried|called} $other{ from behind a #object|}. "{You are very|How} $quality, $hero{|, thank you}!"',
        "$hero {held|gave} the $color $object {up high|to the $animal} and {laughed|smiled}, {for|because} there was nothing to fear.",
    ),
    (
        "They {went home|walked back|returned} {through the #place|to the $place}, and $hero was $glad{ and not afraid anymore|}.",
        "Everyone in $town {talked|heard} about {it|that night}, and $hero was $glad{ and a little proud|}.",
    ),
)
PLOTS = (LOST, ANIMAL, MAKING, QUARREL, BRAVE)
EXTRAS = (
    "The {sky|sun|air|wind} was {#weather|warm|#color|soft} over the {$place|$second}{ that #time|}.",
    "A #color {bird|butterfly|leaf} {flew|moved|danced} over the #place{ and then was gone|}.",
    '"I like this #place," said $other. "It is {so |very |}#look."',
    "Nearby, a #quality #job was {selling|carrying|looking at} {a #look #object|some #food}.",
    "Because {it was $weather|the day was long}, they {rested|sat down|stopped} {by|under} a #plant and {ate|shared} {a #snack|some #food}.",
    '"What a {#look|#weather|wonderful|good} day!" {said|cried|laughed} $hero{ to the #animal| $at|}.',
)
ENDINGS = (
    "{And|From then on,} $hero {never|always} {forgot|remembered} {the|that} {day|#time} $at2{|, and everyone was #good}.",
    "{The lesson is|So remember}: {it is good to be|be} #quality {and|but never} #quality.",
    "The end.",
    "They all lived {happily|in peace} {ever after|in $town for many years}.",
    "That #time, $hero {slept|dreamed} {well|deeply} and dreamed of {a #look #object|the #place|a #color #animal}.",
)


def tell(w: Writer) -> list[str]:
    """Casts and tells one story; returns its paragraphs."""
    cast(w)
    plot = w.rng.choice(PLOTS)
    first = [w.say(*OPENINGS)]
    first += [w.say(*LIKES) for _ in range(w.rng.choice((0, 1, 1, 2)))]
    body = []
    for step in plot:
        body.append(w.say(*step))
        if w.chance(0.15):
            body.append(w.say(*EXTRAS))
    cut = w.rng.randint(2, 4)
    paragraphs = [" ".join(first), " ".join(body[:cut]), " ".join(body[cut:])]
    if w.chance(0.5):
        paragraphs[-1] += " " + w.say(*ENDINGS)
    w.state["plot"] = str(PLOTS.index(plot))
    return paragraphs


def questions(w: Writer, ask: str = "", reply: str = "") -> list[tuple[str, str]]:
    """Questions about the story just told, with their answers; `ask` and `reply` are put before them."""
    s = w.state
    asked: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
        (
            (
                "{Who|Which $kind} {is|was} {the|this} {story|tale}{ of $town| about the $second| from the $place|} about?",
                "What is the name of the $quality $kind{ in the {story|tale|text}| near the $place|}?",
                "{Tell me|Say|Give} the name of the $quality $kind{ in the {story|tale|text}| near the $place|}.",
            ),
            (
                "$hero.",
                "The {story|tale} is about $hero.",
                "It is about $hero, a $quality $kind.",
                "$hero, the $quality $kind.",
            ),
        ),
        (
            (
                "How did $hero feel {at|in} the end{ of the {story|tale}|}?",
                "{At|In} the end{ of the {story|tale}|}, {how did $hero feel|was $hero $sorry or $glad|what did $hero feel}?",
            ),
            (
                "$hero {was|felt} $glad.",
                "$He {was|felt} $glad.",
                "{At the end|In the end}, {$hero|$he} {was|felt} $glad.",
            ),
        ),
    ]
    if s["plot"] in "034":
        asked.append(
            (
                (
                    "{What|Which} color {was|is} the $object{ {of|that} $hero{ had|}| in the {story|tale}|}?",
                    "Which color did the $object have{ in the {story|tale}|}?",
                ),
                ("It {was|is} $color.", "The $object {was|is} $color.", "$color, {I think|of course}."),
            )
        )
    if s["plot"] in "03":
        asked.append(
            (
                (
                    "Who {else was in|was with $hero in} the {story|tale|$second}?",
                    "Which {friend|person|other child} {was with|met|came to} $hero{ in the {story|tale|$second}|}?",
                ),
                (
                    "$other.",
                    "It was $other.",
                    "{The friend|That} was $other.",
                    "$other {was there|met $hero|came to the $second}.",
                ),
            )
        )
    if s["plot"] == "1":
        asked.append(
            (
                (
                    "{Which|What} animal did $hero {help|find|meet|see}{ in the {story|tale|$second}|}?",
                    "Who got {the|some} $food from $hero?",
                ),
                (
                    "{$hero|$He} {helped|met|found} a $animal{ $at2|}.",
                    "It was a $animal{, and it got $food|}.",
                ),
            )
        )
    w.rng.shuffle(asked)
    return [
        (w.say(*(ask + x for x in q)), w.say(*(reply + x for x in a)))
        for q, a in asked[: w.rng.randint(1, 3)]
    ]


def story_document(w: Writer) -> str:
    """A story, sometimes with a title, sometimes with questions after it."""
    paragraphs = tell(w)
    text = "\n\n".join(paragraphs) if w.chance(0.5) else " ".join(paragraphs)
    if w.chance(0.25):
        title = w.say("Title: {The |}{$look |$color |}{$object|$animal}{ of $town| $at|} and $hero")
        text = f"{title}\n\n{text}"
    if w.chance(0.5):
        text += "\n\n" + "\n".join(f"{q}\n{a}" for q, a in questions(w, "Question: ", "Answer: "))
    return text
