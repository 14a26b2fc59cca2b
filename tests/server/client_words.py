"""What the tests of the `openai` client say to the server."""

import json

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CALL = (
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rom</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
)


def user(text="", **order):
    return [{"role": "user", "content": json.dumps(order) if order else text}]
