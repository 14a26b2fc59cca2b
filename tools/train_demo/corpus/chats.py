# ruff: noqa: E501  (a wording is easier to judge on one line)
"""Conversations in GLM's layout: roles, thinking, tool calls and tool results."""

from __future__ import annotations

import json
from collections.abc import Callable

from . import stories, tasks, words
from .writer import Writer

PREFIX = "[gMASK]<sop>"
TOOLS_HEAD = "# Tools\n\nYou may call these:\n<tools>\n"
TOOLS_TAIL = "\n</tools>\n\nWrite calls like this:\n<tool_call>name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n</tool_call>"

Exchange = tuple[str, str, str]  # user, thinking ("" when not used), reply


def tool_call(name: str, arguments: dict[str, str | int]) -> str:
    """One call in GLM's markup."""
    body = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in arguments.items())
    return f"<tool_call>{name}\n{body}</tool_call>"


def tools_text(tools: list[str]) -> str:
    """The system part that lists tools, one JSON object a line."""
    return TOOLS_HEAD + "\n".join(tools) + TOOLS_TAIL


def tool_schema(w: Writer, name: str, does: str, parameters: dict[str, str]) -> str:
    """One tool's JSON line; its descriptions vary."""

    def make() -> str:
        properties = {
            key: {
                "type": kind,
                "description": w.fill(
                    f"{{The|A|Which|Its|}} {{{key}|{key} to use|given {key}|wanted {key}}}"
                ).strip(),
            }
            for key, kind in parameters.items()
        }
        function = {
            "name": name,
            "description": w.fill(does),
            "parameters": {"type": "object", "properties": properties, "required": list(parameters)},
        }
        return json.dumps({"type": "function", "function": function})

    return w.until_fits(make)


def arithmetic(w: Writer) -> Exchange:
    """A sum asked in words, worked out while thinking."""
    task, value, steps = tasks.operation(w, w.rng.choice((1, 2, 2, 3)))
    wording = task.replace("+", "plus").replace("-", "minus") if w.chance(0.4) else task
    w.state["task"] = wording
    question = w.say(
        "{What is|How much is|And what is} $task?",
        "{Please compute|Compute|Calculate} $task{, please|}.",
        "{I need|Give me|Find} {the {result|answer|value} of |}$task{, please| now| today|}.",
    )
    if w.chance(0.7):
        return question, f"{task}:\n{steps}", f"{task} = {value}"
    return question, "", f"{task} = {value}"


def about_story(w: Writer) -> Exchange:
    """A story given by the user and a question about it."""
    paragraphs = stories.tell(w)
    question, answer = stories.questions(w)[0]
    return " ".join(paragraphs) + "\n" + question, "", answer


def tell_story(w: Writer) -> Exchange:
    """The user asks for a story."""
    paragraphs = stories.tell(w)
    ask = w.say(
        "{Tell me|Write|Please tell me|I want} a {short |little |}story about {a|some} $kind {named|called} $hero{, please|}.",
        "{Please|Now|For #name,} {tell|write} a {short |}{story|tale} {about $hero|with a $kind called $hero|about the $quality $hero}.",
    )
    return ask, "", "\n\n".join(paragraphs)


def fact_question(w: Writer) -> Exchange:
    """A fact asked for."""
    kind = w.rng.randrange(4)
    pairs = (words.CAPITALS, words.SOUNDS, words.HOMES, words.OPPOSITES)[kind]
    a, b = w.rng.choice(list(pairs.items()))
    w.state.update(a=a, b=b)
    question = (
        "{What is|Do you know|Can you name} the capital {city |}of $a{, please|}?",
        "{What sound|Which sound|What} does {a|the} $a make{ at home| at night|}?",
        "Where does {a|the} $a {live|sleep}{ in #season| in {cold|warm|#weather} weather|}?",
        "{What is|Do you know|Can you name} the opposite of {the word |}$a{, please|}?",
    )[kind]
    answer = (
        "{The capital of $a is $b|It is $b|$b is the capital of $a}.",
        "{A|The} $a $b.",
        "{A|The} $a lives in a $b.",
        "{The opposite of $a is $b|It is $b}.",
    )[kind]
    return w.say(question), "", w.say(answer)


def sort_or_copy(w: Writer) -> Exchange:
    """An exercise given as a request."""
    if w.chance(0.5):
        numbers = w.rng.sample(range(1, 100), w.rng.randint(3, 6))
        w.state["items"] = tasks.commas(numbers)
        return (
            w.say("{Sort|Please sort|Put in order}{ these numbers| this list|}: $items"),
            "",
            tasks.commas(sorted(numbers)),
        )
    given = " ".join(w.invented() for _ in range(w.rng.randint(2, 4)))
    w.state["items"] = given
    return w.say("{Repeat|Say|Please repeat|Copy}{ after me| this|}: $items"), "", w.until_fits(lambda: given)


def to_json(w: Writer) -> Exchange:
    """A sentence to be turned into JSON."""

    def draw() -> str:
        data.clear()
        data.update(tasks.record(w))
        return json.dumps(data)

    data: dict[str, str | int | list[str]] = {}
    encoded = w.until_fits(draw)
    text = tasks.describe(w, data)
    ask = w.say(
        "{Write|Give|Return|Put} {this|it|that|the text} as JSON{, please|}{:|.}",
        "{As|In|To} JSON{, please|}{:|.}",
    )
    return f"{ask}\n{text}", "", encoded


def greeting(w: Writer) -> Exchange:
    """Small talk."""
    w.state["name"] = w.pick("name")
    return w.rng.choice(
        (
            lambda: (
                w.say("{Hello|Hi|Good #time}{!|,} {I am|my name is|this is} $name{ from #town|}."),
                "",
                w.say(
                    "{Hello|Hi}, $name! {How can I help you|What can I do for you|Nice to meet you}{ {today|now|this #time}|}{?|!}"
                ),
            ),
            lambda: (
                w.say(
                    "{How are you|Are you well|Do you feel #good}{ today| now| this #time| on this #weather #day|}?"
                ),
                "",
                w.say(
                    "I am {well|fine|#good}, thank you{ for asking|}. {What can I do for you|How can I help you}{ {today|now|this #time}|}?"
                ),
            ),
            lambda: (
                w.say(
                    "{Thank you|Thanks}{ very much| for {the|your} {help|answer|story}|, that was #good|}{!|.}"
                ),
                "",
                w.say("{You are welcome|Any time|I was glad to help}{!|, and have a #good #time!|.}"),
            ),
        )
    )()


EXCHANGES: tuple[tuple[float, Callable[[Writer], Exchange]], ...] = (
    (0.30, arithmetic), (0.16, about_story), (0.10, tell_story), (0.16, fact_question), (0.10, sort_or_copy),
    (0.10, to_json), (0.08, greeting),
)  # fmt: skip


def exchange(w: Writer) -> Exchange:
    kinds = w.rng.choices([make for _, make in EXCHANGES], [weight for weight, _ in EXCHANGES])
    return kinds[0](w)


def system_line(w: Writer) -> str:
    return w.say(
        "You are a {#quality|#good} {helper|assistant|teacher|friend}{ who {answers|speaks} {shortly|clearly|{with|in} few words}|}{ from #town|}.",
        "{Answer|Reply|Speak} {shortly|clearly|kindly|politely}{ and be #quality|}{, as a #job would|}.",
    )


def chat(w: Writer) -> str:
    """One to three exchanges, ending the way a reply ends."""
    text = PREFIX
    if w.chance(0.4):
        text += "<|system|>" + system_line(w)
    for _ in range(w.rng.choice((1, 1, 2, 3))):
        user, thinking, reply = exchange(w)
        text += f"<|user|>{user}<|assistant|><think>{thinking}</think>{reply}"
    return text + ("<|user|>" if w.chance(0.5) else "")


def calculator_call(w: Writer) -> tuple[str, str, str, str]:
    task, value, _ = tasks.operation(w, w.rng.choice((2, 3)))
    w.state["task"] = task
    ask = w.say(
        "{Use the calculator|Compute with the tool|Please calculate|Work out}{ for me|}: $task",
        "{What is|How much is} $task{ exactly|}?",
    )
    return ask, tool_call("calculate", {"expression": task}), str(value), f"{task} = {value}"


def weather_call(w: Writer) -> tuple[str, str, str, str]:
    w.state.update(
        town=w.pick("town"), weather=w.pick("weather"), degrees=str(w.rng.randint(1, 35)), day=w.pick("day")
    )
    ask = w.say(
        "{How is|What is} the weather {in|at} $town on $day?",
        "{Is it|Will it be} #weather in $town {on|this} $day?",
    )
    result = json.dumps({"weather": w.state["weather"], "degrees": int(w.state["degrees"])})
    answer = w.say("{On $day it|It} {is|will be} $weather in $town{ on $day|}, {with|at} $degrees degrees.")
    return ask, tool_call("get_weather", {"city": w.state["town"], "day": w.state["day"]}), result, answer


def find_call(w: Writer) -> tuple[str, str, str, str]:
    w.state.update(object=w.pick("object"), color=w.pick("color"), place=w.pick("place"))
    w.state["at"] = words.at(w.state["place"])
    ask = w.say(
        "{Where is|Can you find|Please, where is} {the|my|our} $color $object?",
        "{Find|Look for} {the|my|our} $color $object{, please|}.",
    )
    answer = w.say("{The|Your} $color $object is $at.", "{It|The $object} {is|was} {found |}$at.")
    call = tool_call("find_item", {"item": w.state["object"], "color": w.state["color"]})
    return ask, call, json.dumps({"place": w.state["place"]}), answer


def tool_chat(w: Writer) -> str:
    """A request answered by calling a tool and reading its result."""
    catalogue = {
        "calculate": (
            "{Computes|Works out|Evaluates|Solves} {a sum|an expression|numbers}",
            {"expression": "string"},
        ),
        "get_weather": (
            "{Tells|Gives|Looks up|Reports} {the weather|weather for a day}",
            {"city": "string", "day": "string"},
        ),
        "find_item": (
            "{Finds|Looks for|Searches|Locates} {an item|a thing|lost things}",
            {"item": "string", "color": "string"},
        ),
    }
    makers = {"calculate": calculator_call, "get_weather": weather_call, "find_item": find_call}
    names = w.rng.sample(list(catalogue), w.rng.randint(1, 3))
    text = PREFIX + "<|system|>" + tools_text([tool_schema(w, n, *catalogue[n]) for n in names])
    ask, call, result, answer = makers[w.rng.choice(names)](w)
    text += f"<|user|>{ask}<|assistant|><think></think>{call}<|observation|><tool_response>{result}</tool_response>"
    return text + f"<|assistant|><think></think>{answer}" + ("<|user|>" if w.chance(0.5) else "")
