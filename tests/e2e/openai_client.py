#!/usr/bin/env python3
"""Checks a running braid server with the openai Python client: what people's programs do.

Usage: openai_client.py BASE_URL [--api-key KEY]     (BASE_URL like http://127.0.0.1:8000/v1)

Prints one line per check; exit 0 all passed, 1 a check failed, 77 skipped with the reason on stderr.
"""
import argparse
import sys

try:
    import openai
except ImportError as error:
    print(f"skipped: the openai package is not installed ({error})", file=sys.stderr)
    sys.exit(77)

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
HELLO = [{"role": "user", "content": "Say hello."}]


def check_models(client, model):
    cards = client.models.list().data
    assert any(card.id == model for card in cards), cards
    assert client.models.retrieve(model).id == model


def check_chat(client, model):
    reply = client.chat.completions.create(model=model, messages=HELLO, max_tokens=16, temperature=0)
    choice = reply.choices[0]
    assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length"), reply
    usage = reply.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0, usage
    assert usage.prompt_tokens_details.cached_tokens >= 0, usage


def check_chat_stream(client, model):
    whole = client.chat.completions.create(model=model, messages=HELLO, max_tokens=16, temperature=0)
    text, finish, usage, roles = "", None, None, 0
    stream = client.chat.completions.create(model=model, messages=HELLO, max_tokens=16, temperature=0, stream=True,
                                            stream_options={"include_usage": True})
    for chunk in stream:
        if chunk.usage:
            assert chunk.choices == [], chunk
            usage = chunk.usage
            continue
        delta = chunk.choices[0].delta
        roles += delta.role == "assistant"
        text += delta.content or ""
        finish = chunk.choices[0].finish_reason or finish
    assert roles == 1 and finish == whole.choices[0].finish_reason, (roles, finish)
    assert text == (whole.choices[0].message.content or ""), (text, whole)
    assert usage.completion_tokens == whole.usage.completion_tokens, usage


def check_choices_and_seed(client, model):
    ask = dict(model=model, messages=HELLO, max_tokens=8, temperature=1.0, n=3, seed=5)
    first, again = (client.chat.completions.create(**ask) for _ in range(2))
    assert [c.index for c in first.choices] == [0, 1, 2]
    assert [c.message.content for c in first.choices] == [c.message.content for c in again.choices]


def check_logprobs(client, model):
    reply = client.chat.completions.create(model=model, messages=HELLO, max_tokens=4, temperature=0, logprobs=True,
                                           top_logprobs=3)
    content = reply.choices[0].logprobs.content
    assert len(content) == reply.usage.completion_tokens, content
    for entry in content:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3, entry
        assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token, entry


def check_completions(client, model):
    reply = client.completions.create(model=model, prompt=["One", "Two"], max_tokens=4, temperature=0, logprobs=1, echo=True)
    assert [c.index for c in reply.choices] == [0, 1]
    for choice, prompt in zip(reply.choices, ("One", "Two")):
        assert choice.text.startswith(prompt), choice
        assert choice.logprobs.token_logprobs[0] is None
        assert len(choice.logprobs.tokens) == len(choice.logprobs.text_offset) == len(choice.logprobs.top_logprobs)
    text = "".join(c.choices[0].text for c in client.completions.create(model=model, prompt="One", max_tokens=4,
                                                                        temperature=0, stream=True))
    assert reply.choices[0].text == "One" + text, (reply, text)


def check_stop(client, model):
    free = client.completions.create(model=model, prompt="One", max_tokens=12, temperature=0).choices[0].text
    if len(free) < 3:
        return
    stop = free[1:3]
    reply = client.completions.create(model=model, prompt="One", max_tokens=12, temperature=0, stop=[stop]).choices[0]
    assert reply.text == free[:free.index(stop)] and reply.finish_reason == "stop", reply


def check_tools(client, model):
    ask = dict(model=model, messages=[{"role": "user", "content": "What is the weather in Paris?"}], tools=TOOLS,
               max_tokens=48, temperature=0)
    choice = client.chat.completions.create(**ask).choices[0]
    streamed = {}
    for chunk in client.chat.completions.create(stream=True, **ask):
        for call in chunk.choices[0].delta.tool_calls or []:
            name, arguments = streamed.get(call.index, ("", ""))
            streamed[call.index] = (name + (call.function.name or ""), arguments + (call.function.arguments or ""))
    calls = choice.message.tool_calls or []
    assert [(c.function.name, c.function.arguments) for c in calls] == list(streamed.values()), (calls, streamed)
    if calls:
        assert choice.finish_reason == "tool_calls"
        follow_up = ask["messages"] + [choice.message, {"role": "tool", "tool_call_id": calls[0].id, "content": "sunny"}]
        client.chat.completions.create(**{**ask, "messages": follow_up})


def expect(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def check_errors(client, model):
    chat = client.chat.completions.create
    error = expect(openai.NotFoundError, lambda: chat(model="no-such-model", messages=HELLO))
    assert error.body["message"], error.body
    error = expect(openai.BadRequestError, lambda: chat(model=model, messages=HELLO, temperature="hot"))
    assert error.param == "temperature", error.body
    expect(openai.BadRequestError, lambda: chat(model=model, messages=HELLO, max_tokens=10**8))
    expect(openai.BadRequestError, lambda: chat(model=model, messages=[]))


def check_early_close(client, model):
    stream = client.chat.completions.create(model=model, messages=HELLO, max_tokens=64, stream=True)
    next(iter(stream))
    stream.close()
    check_chat(client, model)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("base_url")
    parser.add_argument("--api-key", default="none")
    arguments = parser.parse_args()
    client = openai.OpenAI(base_url=arguments.base_url, api_key=arguments.api_key, max_retries=0, timeout=60)
    model = client.models.list().data[0].id
    failed = 0
    for name, check in [(n[6:], f) for n, f in globals().items() if n.startswith("check_")]:
        try:
            check(client, model)
            print(f"ok    {name}")
        except Exception as error:  # a failed check must not hide the others
            failed += 1
            print(f"FAIL  {name}: {type(error).__name__}: {error}")
    print(f"{failed} failed, openai {openai.__version__}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
